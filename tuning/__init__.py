"""Hyperparameter tuning: search spaces, what to try next, when to stop."""
