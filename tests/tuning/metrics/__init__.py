"""Tests of where metrics come from."""
