"""`python -m tests.fuzz --inputs 1000000`: fuzz the body parser, the codec, resources, queries and names."""

from __future__ import annotations

import random
import time
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from tests.fuzz.running import made, run
from tests.fuzz.targets import TARGETS


def main(
    inputs: Annotated[int, typer.Option(help="How many inputs to try.")] = 1_000_000,
    seed: Annotated[int | None, typer.Option(help="What inputs are made from; any, when left out.")] = None,
    target: Annotated[str, typer.Option(help="Only this one.")] = "",
    only: Annotated[int | None, typer.Option(help="Only the input of that number, which is shown.")] = None,
) -> None:
    """Exit with 1 if an input crashes, hangs, takes over a second, or if the process grows."""
    console = Console(highlight=False)
    chosen = [one for one in TARGETS if target in ("", one.name)]
    seed = random.randrange(1 << 32) if seed is None else seed
    if only is not None:
        given = made(chosen[0], seed, only)
        console.print(repr(given), markup=False)
        chosen[0].attempt(given)
        return
    console.print(f"seed {seed}")
    columns = BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    start = time.monotonic()
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("", total=inputs)
        result = run(inputs, seed, lambda done: bar.update(task, completed=done), chosen)
    for finding in result.findings:
        console.print(str(finding), markup=False)
    console.print(
        f"{result.tried.total()} inputs in {time.monotonic() - start:.0f} s: "
        f"{len(result.findings)} findings; slowest {result.slowest:.2f} s, "
        f"grown by {result.grown >> 20} MiB; {dict(result.tried)}"
    )
    raise typer.Exit(bool(result.findings))


if __name__ == "__main__":
    typer.run(main)
