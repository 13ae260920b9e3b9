"""Replays requests through the autoscaler's own decisions, with nodes that are only numbers.

`traces` says when requests come, `version` what becomes of them, `replay` decides how many nodes there are.
"""
