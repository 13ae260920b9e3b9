"""What `pilotlight` shows of the trials of tuning jobs, and tuning without a server."""
