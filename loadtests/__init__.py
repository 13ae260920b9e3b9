"""Load tests: they speak HTTP from outside and import nothing of the server."""
