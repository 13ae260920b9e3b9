"""The trials of a tuning job: their supervisor, the process of each, and the metric that it reports."""
