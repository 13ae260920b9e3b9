"""The options of a load, beside locust's own."""

from __future__ import annotations

import argparse
import textwrap

from loadtests.run_record import RunSettings
from loadtests.shapes import SHAPES, ShapeSettings

USERS = 128


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("Load on a model").add_argument
    add("--project", default="local", help="project of the model (default: local)")
    add("--model", default="", help="model to predict with")
    add("--model-version", default="", help="version (default: that of the model)")
    add("--instances", default="", metavar="FILE", help="one JSON instance per line")
    add("--rows", type=_parse_count, default=1, metavar="N", help="instances per request (default: 1)")
    add("--report", default="", metavar="FOLDER", help="where the report and the recorded files go")

    add = parser.add_argument_group("Shape of the load", _describe_shapes()).add_argument
    settings = ShapeSettings()
    add("--shape", choices=list(SHAPES), default="steady", help="(default: steady)")
    for name, default, text in (
        ("rate", settings.rate, "requests per second at the peak"),
        ("step-seconds", settings.step_seconds, "how long each stage with traffic lasts"),
        ("idle-seconds", settings.idle_seconds, "how long each stage without traffic lasts"),
        ("wake-within", 5.0, "seconds allowed for the first answer after a pause"),
        ("p99-within", 1.0, "seconds allowed for p99 in the second half of each stage"),
    ):
        add(
            f"--{name}",
            type=_parse_positive,
            default=default,
            metavar="X",
            help=f"{text} (default: {default:g})",
        )
    add(
        "--steps",
        type=_parse_count,
        default=settings.steps,
        metavar="N",
        help="staircase: steps up (default: 5)",
    )
    add(
        "--cycles",
        type=_parse_count,
        default=settings.cycles,
        metavar="N",
        help="idle-wake-idle: wake-ups (default: 1)",
    )


def read_run_settings(options: argparse.Namespace, host: str | None) -> RunSettings:
    """The settings that the options describe; raises ValueError for a missing one."""
    if not (host and options.model and options.instances and options.report):
        raise ValueError("say what to load: --host URL --model MODEL --instances FILE --report FOLDER")
    if options.run_time:
        raise ValueError("a shape has its own length: --step-seconds and --idle-seconds, not --run-time")
    model = f"projects/{options.project}/models/{options.model}"
    settings = ShapeSettings(
        options.rate, options.step_seconds, options.idle_seconds, options.steps, options.cycles
    )
    return RunSettings(
        host=host,
        target=f"{model}/versions/{options.model_version}" if options.model_version else model,
        rows=options.rows,
        users=options.num_users or USERS,
        plan=SHAPES[options.shape](settings),
        wake_within=options.wake_within,
        p99_within=options.p99_within,
    )


def _describe_shapes() -> str:
    paragraphs = (f"{name}: {' '.join((make.__doc__ or '').split())}" for name, make in SHAPES.items())
    return "\n".join(textwrap.fill(one, 76, subsequent_indent="    ") for one in paragraphs)


def _parse_positive(text: str) -> float:
    number = float(text)
    if not 0 < number < 1e9:
        raise argparse.ArgumentTypeError("must be above 0")
    return number


def _parse_count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return number
