"""Tests of the trials of tuning jobs."""
