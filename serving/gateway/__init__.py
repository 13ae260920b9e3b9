"""The gateway: the process with the control API, in front of all nodes."""
