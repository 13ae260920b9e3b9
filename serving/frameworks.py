"""All facts about frameworks: a record for each, and the table of them.

A framework is a folder with a module `framework`, whose `FRAMEWORK` is its record. Every program reads it,
the gateway too, so that module imports nothing heavy; code that needs the library is named by an import
string, "module:name". Only the folder knows what its framework is called: everybody else asks for facts.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any

DEFAULT_PILOT = "tabular"
"""The pilot of models whose framework is not known yet, and of users' code."""

BATCH_ROWS = 64
"""Rows per call of a batch job: the contract's, for models whose memory and time per row are unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFile:
    """A file that a model folder of a framework holds, directly in it."""

    name: str
    # AI Platform does not know the name: the file counts only where no other model file is.
    is_extension: bool = False
    # Whether the file is of this framework, by its content. Without it: if no other framework recognizes it.
    recognize: Callable[[Path], bool] | None = None
    # The name is another framework's: it alone does not mean this one.
    is_shared_name: bool = False
    # Other files with these endings probably want this name.
    suffixes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Framework:
    """A framework's record, of which there is one."""

    # On the wire, in texts, and in the Open Inference Protocol and schemas.
    name: str
    title: str
    platform: str
    # "module:name" of `(LoadSpec) -> Runtime`. Importing the module imports the library.
    load: str

    # The package that tells whether the library is installed; "": it needs none.
    library: str = ""
    # Packages whose code is the library's, not the user's.
    packages: frozenset[str] = frozenset()
    # What a batch worker installs, the library first; the version of that is shown and compared.
    distributions: tuple[str, ...] = ()
    # Other distributions whose versions accelerated models depend on.
    accelerators: tuple[str, ...] = ()
    # The extra of this program that installs it; "": every installation has it.
    extra: str = ""
    # Variables that are set in every process before the library is imported.
    environment: Mapping[str, str] = field(default_factory=dict)

    # In the order in which they are tried where the framework is given.
    model_files: tuple[ModelFile, ...] = ()
    # What to do with other files, by their suffix; {name} stands for the file's name.
    advice: Mapping[str, str] = field(default_factory=dict)
    # "module:name" of `(model folder) -> warnings`, which rewrites files of old formats, once for a version.
    convert_files: str = ""

    # Requests and answers are tensors by name, as the model's signatures declare them.
    takes_named_tensors: bool = False
    # Models are classes of users, which get instances and all other fields of a request as they are; what
    # they raise says nothing of the model. True for exactly one framework.
    runs_user_code: bool = False
    # TensorFlow Serving serves these models too: its verbs that take tf.Example messages and its error codes
    # apply.
    served_by_tensorflow_serving: bool = False
    # Models may be estimators, with other methods than predict.
    has_methods: bool = False
    # Null in an instance is a missing number, and numbers have the range of float32.
    takes_missing_numbers: bool = False

    # By model file ("" for user code), the loader of `serving.predictor.program` with which another
    # interpreter computes the model. None: nothing in the files depends on a version; they are computed here.
    predictor_loaders: Mapping[str, str] = field(default_factory=dict)
    # Modules that the pilot of another interpreter imports, as far as they are there.
    predictor_preload: tuple[str, ...] = ()
    # The files say which version of the library has saved them.
    tells_saved_version: bool = False

    # Rows per call of a batch job, where rows are independent: fast models lose more than half of their speed
    # in calls of 64 (measured).
    batch_rows: int = BATCH_ROWS
    # A call leaves its instances unchanged. Others run users' code, or steps that work in place.
    keeps_instances: bool = False
    # Accelerated strategies are verified before a new version serves, which loads the model twice; not in the
    # background.
    verified_first: bool = False

    # The key of the pilot that its nodes are forked from. Frameworks share one if their libraries get along
    # in a process; one that is not installed has no part in it.
    pilot: str = DEFAULT_PILOT
    # Modules that the pilot imports, in this order.
    preload: tuple[str, ...] = ()
    # "module:name" of `(folder) -> None`, which writes a tiny model that spare nodes warm up with.
    tiny_model: str = ""
    # "module:name" of `() -> None`, which warms up a spare node where a model would leave threads in it.
    threadless_warmup: str = ""
    # The pilot's memory, where it is so much that `pilotlight doctor` mentions it.
    pilot_bytes: int = 0
    # Pattern of packages: user code that imports one is forked from this framework's pilot.
    user_imports: str = ""

    @property
    def option(self) -> str:
        """The name on the command line and in settings, as gcloud spells it."""
        return self.name.lower().replace("_", "-")

    @property
    def file_names(self) -> tuple[str, ...]:
        return tuple(file.name for file in self.model_files)

    @property
    def requirement(self) -> str:
        """What pip installs it by."""
        return f"pilotlight[{self.extra}]" if self.extra else "".join(self.distributions[:1])


# The folders. Where several frameworks could be meant, the first one is.
_FOLDERS = (
    "serving.runtimes.tensorflow_runtime",
    "serving.runtimes.sklearn_runtime",
    "serving.runtimes.xgboost_runtime",
    "serving.runtimes.lightgbm_runtime",
    "serving.runtimes.onnx_runtime",
    "serving.runtimes.custom_runtime",
)


@lru_cache
def load_frameworks() -> Mapping[str, Framework]:
    """The table: the records by name."""
    records = [import_object(f"{folder}.framework:FRAMEWORK") for folder in _FOLDERS]
    return MappingProxyType({record.name: record for record in records})


def list_selectable() -> tuple[Framework, ...]:
    """Those that a version can name; user code is selected by its class instead."""
    return tuple(framework for framework in load_frameworks().values() if not framework.runs_user_code)


def find_user_code_framework() -> Framework:
    """The framework of custom prediction routines, and of containers."""
    return next(framework for framework in load_frameworks().values() if framework.runs_user_code)


def find_by_platform(platform: str) -> Framework:
    """The framework of a schema; that of user code, about which nothing is known, where there is none."""
    found = (one for one in load_frameworks().values() if one.platform == platform)
    return next(found, find_user_code_framework())


def find_by_files(names: Collection[str]) -> tuple[Framework, ...]:
    """The frameworks that a folder with files of these names may be of, by the names alone.

    Names that AI Platform knows come before our extensions.
    """
    for is_extension in (False, True):
        found = tuple(
            framework
            for framework in load_frameworks().values()
            if any(
                file.name in names and file.is_extension == is_extension and not file.is_shared_name
                for file in framework.model_files
            )
        )
        if found:
            return found
    return ()


def list_installed() -> tuple[Framework, ...]:
    return tuple(framework for framework in load_frameworks().values() if is_installed(framework))


@lru_cache
def is_installed(framework: Framework) -> bool:
    return not framework.library or find_spec(framework.library) is not None


def join_environments() -> dict[str, str]:
    """The variables of all frameworks."""
    return {
        name: value
        for framework in load_frameworks().values()
        for name, value in framework.environment.items()
    }


def import_object(path: str) -> Any:
    """What an import string "module:name" names. Raises ImportError."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)
