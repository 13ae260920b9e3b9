"""The state in a PostgreSQL database that several servers may use; imported where the setting `state` is."""
