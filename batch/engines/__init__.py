"""The clusters that run pipelines, asked directly where Beam does not tell what it should."""
