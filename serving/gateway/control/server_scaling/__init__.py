"""How many servers there should be: told as a metric, and to Kubernetes where that is switched on."""
