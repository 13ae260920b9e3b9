"""A node: one process that serves one version."""
