"""Replays requests through the autoscaler's own decisions, with nodes that are only numbers.

`traces` has the arrival times, `simulated_version` the requests and nodes, `replay` the scaling loop.
"""
