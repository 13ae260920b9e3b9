"""Modules that every program finds by their own names: this folder is on its search path.

The folders beside them tell pip which distributions that makes installed.
"""
