"""Where the metric of a trial comes from: a file of reports, or event files. Standard library only."""
