"""Stands for a framework that a pilot has imported."""
