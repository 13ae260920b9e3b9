"""Figures as pictures: SVG that the server draws, and what the pages read for it."""
