"""Batch predictions: their queue, and the processes that do the work (`python -m batch`, never imported)."""
