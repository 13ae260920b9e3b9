"""A node without a gateway, which clients ask directly."""
