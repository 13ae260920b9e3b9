"""Which of several servers has the nodes of a version: decided alike by each, without a coordinator.

Everything here is a pure function of what servers publish of themselves. `pilotlight simulate --cells` runs
it too. docs/cluster.md explains the rules.
"""
