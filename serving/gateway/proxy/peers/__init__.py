"""Predictions that one server of a database passes on to another: one connection between each two servers."""
