"""Training: a supervisor that runs a user's program as one process or as a cluster of them."""
