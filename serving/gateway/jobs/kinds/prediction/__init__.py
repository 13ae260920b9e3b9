"""Batch predictions: a Beam pipeline in a process of its own (`python -m batch`, never imported)."""
