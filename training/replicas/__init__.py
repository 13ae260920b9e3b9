"""The processes of a job: how they are started, read, restarted and ended."""
