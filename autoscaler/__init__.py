"""Keeps the right number of nodes per version; knows nodes, numbers and time, nothing of models."""
