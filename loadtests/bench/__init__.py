"""A benchmark that anyone can repeat: six workloads, servers on one core, the load on another."""
