"""The console: pages for browsers. Imported at the first visit; see `serving.gateway.console_entry`."""
