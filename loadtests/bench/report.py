"""Tables and plots of what a benchmark measured.

    python -m loadtests.bench.report results.jsonl ...  [--images docs/images] [--into docs/performance.md]

reads the files that `python -m loadtests.bench --out` writes, or those of any runner that writes rows of the
same form; several are read as one. It prints tables in markdown: rates, latencies, evenness, ratios, costs,
starts and memory, all of them medians over the rounds. `--images` has plots written there. `--into` puts each
table into a document, between the lines `<!-- bench:NAME -->` and `<!-- end -->`, in place of what stands
there; tables without a place are printed only. The exit code is 1 when an answer was wrong, a request failed,
or a server could not be measured.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from loadtests.bench.reporting.results import BenchResults, read_results
from loadtests.bench.reporting.tables import TABLES


def main() -> int:
    """Print, and write what was asked for; returns the exit code."""
    summary, _, more = __doc__.partition("\n\n")
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.bench.report",
        description=summary,
        epilog=more,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE", help="results as JSON lines")
    parser.add_argument("--images", type=Path, metavar="FOLDER", help="where plots go")
    parser.add_argument(
        "--tables",
        default=",".join(TABLES),
        metavar="LIST",
        help=f"those to print and to put into the document (default: all, {', '.join(TABLES)})",
    )
    parser.add_argument("--into", type=Path, metavar="DOCUMENT", help="markdown with places for the tables")
    options = parser.parse_args()
    try:
        found = read_results(options.files)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    names = [one for one in TABLES if one in options.tables.split(",")]
    print(format_results(found, names))
    if options.images:
        from loadtests.bench.reporting import plots

        options.images.mkdir(parents=True, exist_ok=True)
        for file in plots.write_plots(found, options.images):
            print(f"wrote {file}", file=sys.stderr)
    if options.into:
        before = options.into.read_text()
        options.into.write_text(insert_tables(before, {name: TABLES[name](found) for name in names}))
    return 1 if list_problems(found) else 0


def format_results(found: BenchResults, names: Iterable[str] = ()) -> str:
    """Those tables (all without names) that there is something in, and what went wrong."""
    tables = [f"### {name}\n\n{made}" for name in names or TABLES if (made := TABLES[name](found))]
    return "\n\n".join([*tables, *list_problems(found)])


def insert_tables(document: str, tables: Mapping[str, str]) -> str:
    """The document with each table in its place; a place whose table is empty keeps what it holds."""

    def replace_place(place: re.Match[str]) -> str:
        made = tables.get(place["name"])
        return f"{place['begin']}\n{made}\n{place['end']}" if made else place[0]

    return re.sub(
        r"(?s)(?P<begin><!-- bench:(?P<name>\S+) -->)\n.*?(?P<end><!-- end -->)", replace_place, document
    )


def list_problems(found: BenchResults) -> list[str]:
    """Wrong answers, failed requests and servers that could not be measured, each once."""
    said = [f"WRONG: {one.peer}, {one.workload}: {one.wrong}" for one in found.loads if one.wrong]
    said += [
        f"{one.errors} of {one.requests} requests failed: {one.peer}, {one.workload}, {one.conns} connections"
        for one in found.loads
        if one.errors
    ]
    said += [f"not measured: {one.peer}, {one.model}: {one.error}" for one in found.failures]
    return list(dict.fromkeys(said))


if __name__ == "__main__":
    sys.exit(main())
