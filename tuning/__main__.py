"""`python -m tuning`: the process that suggests; see `tuning.messages`."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

import msgspec

from tuning.messages import SuggesterOrder
from tuning.suggester import run_suggester


def main() -> None:
    # What libraries print must not mix with the reports.
    out = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def send_report(report: Mapping[str, Any]) -> None:
        os.write(out, msgspec.json.encode(report) + b"\n")

    run_suggester(msgspec.json.decode(sys.stdin.buffer.read(), type=SuggesterOrder), send_report)


if __name__ == "__main__":
    main()
