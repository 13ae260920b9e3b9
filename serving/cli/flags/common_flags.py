"""Arguments and flags that several commands share, and how their text is read."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from serving import config
from serving.cli.api_client import ApiClient
from serving.cli.command_output import CommandOutput, TableColumns
from serving.cli.console import print_note
from serving.cli.formats.filters import parse_filter
from serving.cli.formats.projection import parse_sort_keys
from serving.cli.formats.records import select_records, sort_records
from serving.cli.formats.value_parsers import (
    format_choices,
    make_choice_parser,
    merge_pairs,
    parse_limit,
    parse_lists,
    with_usage_errors,
)
from serving.config import NodeConfig, ServeConfig
from serving.errors import InvalidArgument
from serving.frameworks import list_selectable
from serving.predictor import interpreters
from serving.predictor.interpreters import InterpreterRegistry

_PAGE_SIZE = 100
_FRAMEWORKS = tuple(framework.option for framework in list_selectable())


class SingleOutputForm(StrEnum):
    """The forms that a SavedModel's only output can have."""

    BARE = "bare"
    OBJECT = "object"


def make_absolute(uri: str) -> str:
    """A URI unchanged; a path made absolute, because the server has another working directory."""
    return uri if "://" in uri or not uri else str(Path(uri).expanduser().absolute())


def parse_file_path(text: str) -> Path:
    """The path of an existing file; `-` stands for standard input. Raises BadParameter."""
    path = Path(text)
    if text != "-" and (not path.exists() or path.is_dir()):
        raise typer.BadParameter(f"There is no file {text}.")
    return path


def read_token_file(file: Path) -> str:
    """The token that a file, or standard input, holds. Raises InvalidArgument if it cannot be read."""
    try:
        return (sys.stdin.read() if str(file) == "-" else file.read_text()).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"Cannot read {file}: {error}") from error


def drop_none(**fields: Any) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value is not None}


ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", help="The model.", show_default=False)]
VersionArgument = Annotated[str, typer.Argument(metavar="VERSION", help="The version.", show_default=False)]
OperationArgument = Annotated[
    str, typer.Argument(metavar="OPERATION", help="The operation: id or full name.", show_default=False)
]
JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="The job.", show_default=False)]
ModelDirOption = Annotated[
    str,
    typer.Option("--model-dir", help="The model folder: gs://BUCKET/PATH or a path.", show_default=False),
]
ModelOption = Annotated[str, typer.Option("--model", help="The model.", show_default=False)]
DescriptionOption = Annotated[
    str | None, typer.Option("--description", help="What people should know about it.", show_default=False)
]
LabelsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--labels",
        metavar="KEY=VALUE,...",
        help="Labels to put on it. May be given several times.",
        show_default=False,
    ),
]
FrameworkOption = Annotated[
    Any,
    typer.Option(
        "--framework",
        parser=make_choice_parser(_FRAMEWORKS),
        metavar=format_choices(_FRAMEWORKS),
        help="Found out from the files when left out.",
        show_default=False,
    ),
]
PredictionClassOption = Annotated[
    str | None,
    typer.Option(
        "--prediction-class",
        help="A custom prediction routine's class: module.Class.",
        show_default=False,
    ),
]
PredictionMethodOption = Annotated[
    str | None,
    typer.Option(
        "--prediction-method",
        help="The method of an estimator that answers, such as predict_proba.",
        show_default=False,
    ),
]
RuntimeVersionOption = Annotated[
    str | None,
    typer.Option(
        "--runtime-version",
        help="What the model was made for; `pilotlight runtimes` has which interpreter then computes it.",
        show_default=False,
    ),
]
SignatureNameOption = Annotated[
    str | None,
    typer.Option("--signature-name", help="The signature of a SavedModel to use.", show_default=False),
]


def merge_labels(labels: Sequence[str] | None) -> dict[str, str] | None:
    return merge_pairs(labels, "--labels")


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalModelFlags:
    """The flags, besides its folder, for loading a model on this machine."""

    framework: FrameworkOption = None
    prediction_class: PredictionClassOption = None
    prediction_method: PredictionMethodOption = None
    package_uris: Annotated[
        str | None, typer.Option(metavar="URI,...", help="Archives of user code.", show_default=False)
    ] = None
    runtime_version: RuntimeVersionOption = None
    interpreter: Annotated[
        str | None,
        typer.Option(
            metavar="PYTHON", help="Or another Python, with the libraries that it has.", show_default=False
        ),
    ] = None
    single_output: Annotated[
        SingleOutputForm | None,
        typer.Option(
            help="How a SavedModel's only output is answered: bare, as on machine types n1-..., or as an "
            "object with its name (the default).",
            show_default=False,
        ),
    ] = None
    long_decimals: Annotated[
        bool | None,
        typer.Option(
            "--long-decimals",
            help="Write float32 numbers as AI Platform did: 0.10000000149011612.",
            show_default=False,
        ),
    ] = None

    def load_node_settings(self, model_dir: str) -> NodeConfig:
        """The settings of a node that would serve the model.

        Raises BadParameter for flags that exclude each other, InvalidArgument for a folder that is not there.
        """
        if self.runtime_version and self.interpreter:
            raise typer.BadParameter("Give either --runtime-version or --interpreter, not both.")
        return config.load_config(
            NodeConfig,
            {
                "model_dir": _check_model_dir(model_dir),
                "framework": self.framework,
                "prediction_class": self.prediction_class,
                "prediction_method": self.prediction_method,
                "package_uris": self.package_uris,
                "interpreter": self.interpreter or _find_interpreter(self.runtime_version),
                "single_output": self.single_output,
                "long_decimals": self.long_decimals,
            },
        )


def _check_model_dir(model_dir: str) -> str:
    """The URI, or the path of a folder that is there. Raises InvalidArgument."""
    if "://" in model_dir:
        return model_dir
    folder = Path(model_dir).expanduser()
    if folder.is_dir():
        return str(folder)
    what = "is a file" if folder.is_file() else "does not exist"
    raise InvalidArgument(
        f"There is no model folder {folder.absolute()}: it {what}. --model-dir takes the folder "
        "that holds the model's file."
    )


def _find_interpreter(runtime_version: str | None) -> str | None:
    """The interpreter that a server with the same settings would choose."""
    if not runtime_version:
        return None
    settings = config.load_config(ServeConfig, {})
    known = InterpreterRegistry(
        interpreters.parse_interpreters(settings.runtime), settings.state_dir.expanduser()
    )
    if found := known.find_interpreter(runtime_version):
        return found
    print_note(
        f"Runtime version {runtime_version} has no interpreter of its own here: this one's libraries compute "
        f"the model. `pilotlight runtimes add {runtime_version}` gives it one."
    )
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelChangeFlags:
    """The flags that change labels: labels are cleared or removed first, then set."""

    update_labels: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE,...",
            help="Labels to add or change. May be given several times.",
            show_default=False,
        ),
    ] = None
    clear_labels: Annotated[
        bool, typer.Option("--clear-labels", help="Remove all labels.", show_default=False)
    ] = False
    remove_labels: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY,...", help="Labels to remove. May be given several times.", show_default=False
        ),
    ] = None

    def __bool__(self) -> bool:
        return bool(self.clear_labels or self.update_labels is not None or self.remove_labels is not None)

    def apply_to(self, labels: Mapping[str, str]) -> dict[str, str]:
        """The labels after the change."""
        if self.clear_labels and self.remove_labels is not None:
            raise typer.BadParameter("Give either --clear-labels or --remove-labels, not both.")
        removed = labels if self.clear_labels else parse_lists(self.remove_labels or ())
        kept = {key: value for key, value in labels.items() if key not in removed}
        return {**kept, **(merge_pairs(self.update_labels, "--update-labels") or {})}


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionFlags:
    """The flags that select records of a list, applied in this order: sort, filter, limit."""

    filter: Annotated[
        Any,
        typer.Option(
            parser=with_usage_errors(parse_filter),
            metavar="EXPRESSION",
            help="Only what matches, e.g. 'labels.team=ads' or 'state:READY AND -name:test*'.",
            show_default=False,
        ),
    ] = None
    limit: Annotated[
        Any,
        typer.Option(
            parser=parse_limit, metavar="NUMBER", help="At most this many in all.", show_default=False
        ),
    ] = None
    page_size: Annotated[
        Any, typer.Option(parser=parse_limit, metavar="NUMBER", help="How many to ask for at a time.")
    ] = None
    sort_by: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY,...", help="What to sort by; ~KEY is descending.", show_default=False),
    ] = None

    def __call__(self, records: Iterable[Any]) -> Iterable[Any]:
        if self.sort_by:
            records = sort_records(records, parse_sort_keys(parse_lists(self.sort_by)))
        return select_records(records, self.filter, self.limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListFlags(SelectionFlags):
    """The flags of lists of resources."""

    uri: Annotated[bool, typer.Option("--uri", help="Print addresses, one per line.", show_default=False)] = (
        False
    )

    def show_resources(
        self,
        client: ApiClient,
        output: CommandOutput,
        path: str,
        key: str,
        columns: TableColumns,
        *,
        parent: str = "",
    ) -> None:
        """Print the resources of a list, from as many pages as needed.

        `parent` is put before the ids of resources that have no full name.
        """
        size = min(self.page_size or _PAGE_SIZE, _PAGE_SIZE)
        if self.limit and self.filter is None and not self.sort_by:
            size = min(size, self.limit)
        found: Iterable[Any] = client.list_resources(path, key, {"pageSize": size})
        if not self.uri:
            output.show_list(found, columns, self)
            return
        field = "jobId" if parent else "name"
        for resource in self(found):
            output.print_line(client.build_url(f"{parent}{resource[field]}"))
