"""Warm-up of a node: requests to itself before the first client's."""
