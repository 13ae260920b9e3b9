"""Tests of what the command line shows of trials."""
