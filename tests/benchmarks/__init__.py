"""Measurements that anyone can repeat: `make bench`. Ratios within one run, because machines are noisy."""
