"""The servers that a benchmark measures, and the processes they run as."""
