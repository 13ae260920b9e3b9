"""How points are chosen. Only the process that suggests, and tools, import this: it needs numpy and scipy."""
