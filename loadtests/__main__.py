"""Runs a load test and writes its report. In the repository's folder:

    python -m loadtests --host http://127.0.0.1:8080 --model iris --instances rows.jsonl \\
        --shape burst --rate 200 --report out/

It is short for `locust -f loadtests/locustfile.py --headless` and takes the options of locust as well, whose
own `--help` does not list the options below.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from loadtests.options import USERS, add_options


def main() -> None:
    """Check the options that are known here, then become locust."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtests",
        description="Load a model in a chosen shape. Ends with 1 if the objective of the shape was missed.",
        epilog="Every other option is handed to locust.",
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--host", metavar="URL", help="the server")
    parser.add_argument("-u", "--users", metavar="N", help=f"most requests in flight (default: {USERS})")
    add_options(parser)
    parser.parse_known_args()
    file = Path(__file__).with_name("locustfile.py")
    command = [sys.executable, "-m", "locust", "-f", str(file), "--headless", *sys.argv[1:]]
    sys.stdout.flush()
    os.execv(sys.executable, command)  # noqa: S606


if __name__ == "__main__":
    main()
