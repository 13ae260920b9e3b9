"""What is particular to tuning jobs: their loop, and what their trials come to."""
