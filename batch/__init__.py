"""Batch prediction: an Apache Beam job that reads input URIs and writes prediction files."""
