"""Tests of tuning jobs in the gateway."""
