"""The flags of batch predictions: what to read, what to write, and how; on a server or without one."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

import typer

from serving.cli.flags.common_flags import SignatureNameOption, drop_none, make_absolute
from serving.cli.formats.value_parsers import format_choices, make_choice_parser, parse_list, parse_lists

_MAX_ERRORS = re.compile(r"\d+|(\d{1,2}(\.\d+)?|100)%|0?\.\d+")


class DataFormat(StrEnum):
    """Formats of input files as gcloud spells them; json is another name for its text."""

    JSON = "json"
    TEXT = "text"
    TF_RECORD = "tf-record"
    TF_RECORD_GZIP = "tf-record-gzip"

    @property
    def wire(self) -> str:
        return self.name


class OutputDataFormat(StrEnum):
    JSON = "json"
    CSV = "csv"

    @property
    def wire(self) -> str:
        return self.name


def parse_max_errors(text: str) -> str:
    """`100`, `10%` or `0.1`, as the API takes it."""
    if not _MAX_ERRORS.fullmatch(text):
        raise typer.BadParameter(f"{text!r} is neither a number of records nor a share of them, like 10%.")
    return text


def split_shell_words(text: str) -> tuple[str, ...]:
    """A text as a shell would split it."""
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} cannot be split into words: {error}.") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFlags:
    """The flags that say what a batch prediction reads and writes, and how."""

    input_paths: Annotated[
        list[str],
        typer.Option(
            metavar="URI,...",
            help="Input files: a file, FOLDER/* or PREFIX*, on gs:// or local. May be given several times.",
            show_default=False,
        ),
    ]
    output_path: Annotated[
        str, typer.Option(help="The folder for the results: gs://BUCKET/PATH or a path.", show_default=False)
    ]
    data_format: Annotated[
        Any,
        typer.Option(
            parser=make_choice_parser(DataFormat),
            metavar=format_choices(DataFormat),
            help="What the input files hold; text is gcloud's word for json, the default.",
        ),
    ] = DataFormat.JSON
    output_format: Annotated[
        OutputDataFormat | None,
        typer.Option(help="What the result files hold; json when left out.", show_default=False),
    ] = None
    batch_size: Annotated[
        int | None,
        typer.Option(min=1, help="Most records in one call of the model.", show_default=False),
    ] = None
    max_worker_count: Annotated[
        int | None,
        typer.Option(min=1, help="Most workers; 10 when left out, bounded by cores.", show_default=False),
    ] = None
    signature_name: SignatureNameOption = None
    keys: Annotated[
        Any,
        typer.Option(
            parser=parse_list,
            metavar="NAME,...",
            help="Fields that the model is not shown, passed through to the result lines.",
            show_default=False,
        ),
    ] = None
    max_errors: Annotated[
        Any,
        typer.Option(
            parser=parse_max_errors,
            metavar="N|N%",
            help="Give up when more records, or a greater share of them, are in error.",
            show_default=False,
        ),
    ] = None
    runner: Annotated[
        str | None,
        typer.Option(
            help="The Beam runner, e.g. FlinkRunner; a server runs its own or FnApiRunner.",
            show_default=False,
        ),
    ] = None
    pipeline_options: Annotated[
        Any,
        typer.Option(
            parser=split_shell_words,
            metavar="'--OPTION=VALUE ...'",
            help="Beam's own options, in one string; a server takes those for capacity.",
            show_default=False,
        ),
    ] = None

    @property
    def absolute_inputs(self) -> list[str]:
        return [make_absolute(uri) for uri in parse_lists(self.input_paths)]

    @property
    def absolute_output(self) -> str:
        return make_absolute(self.output_path)

    def build_prediction_input(self) -> dict[str, Any]:
        """Fields of a PredictionInput; the server chooses those that are not given."""
        return drop_none(
            dataFormat=self.data_format.wire,
            outputDataFormat=self.output_format and self.output_format.wire,
            inputPaths=self.absolute_inputs,
            outputPath=self.absolute_output,
            batchSize=self.batch_size and str(self.batch_size),
            maxWorkerCount=self.max_worker_count and str(self.max_worker_count),
            signatureName=self.signature_name,
        )

    def build_batch_options(self) -> dict[str, Any]:
        """Fields of batchOptions, which is not part of AI Platform's API."""
        return drop_none(
            keys=self.keys and list(self.keys),
            maxErrors=self.max_errors,
            runner=self.runner,
            pipelineOptions=self.pipeline_options and list(self.pipeline_options),
        )
