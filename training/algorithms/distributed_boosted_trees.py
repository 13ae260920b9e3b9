"""Boosted trees by all replicas of a job together."""

from __future__ import annotations

import sys

from training.algorithms import boosted_trees
from training.algorithms.collective import ClusterPosition

if __name__ == "__main__":
    with boosted_trees.exit_on_error():
        boosted_trees.main(sys.argv[1:], ClusterPosition.of_this_process())
