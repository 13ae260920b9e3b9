"""The checks of `pilotlight doctor` beside a server that runs, each result a line of JSON.

The console runs `python -m serving.cli.health [--quick]` in a process of its own. Settings come from the
environment.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from serving import config
from serving.cli.health.doctor import collect_checks
from serving.cli.health.result import run_checks
from serving.config import ServeConfig


def main(arguments: Sequence[str]) -> None:
    settings = config.load_config(ServeConfig, {})
    checks = collect_checks(settings, "", write=False, quick="--quick" in arguments, is_running=True)
    for result in run_checks(checks):
        print(json.dumps(asdict(result)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
