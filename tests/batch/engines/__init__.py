"""Tests of what engines are asked."""
