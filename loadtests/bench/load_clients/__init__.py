"""Programs that make the load, and the payload formats that they send."""
