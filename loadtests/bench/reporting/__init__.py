"""Results of a benchmark: rows, medians, tables and plots."""
