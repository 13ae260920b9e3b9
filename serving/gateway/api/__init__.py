"""The control API: each endpoint parses, makes one call to the catalog, and renders."""
