"""Training jobs: a supervisor of a program's replicas in a process of its own (`python -m training`)."""
