"""Sessions of onnxruntime, and what its errors mean, in words that help."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as states

from serving.errors import InvalidInputs, LoadFailed, ModelFailed

_FATAL = 4
_MAX_MESSAGE = 500

_PREFIX = re.compile(r"^\[ONNXRuntimeError\] : \d+ : [A-Z_]+ : ")
# Where in onnxruntime's source a check failed, and the check.
_SOURCE = re.compile(r"/onnxruntime_src/\S+:\d+ .*?\)(?: const)? (?:.*? was false\. )?", re.DOTALL)
_NODE = re.compile(
    r"Non-zero status code returned while running (\w+) node\. Name:'([^']*)' Status Message: "
)
_OUT_OF_MEMORY = re.compile(r"allocat|bad_alloc", re.IGNORECASE)
# Errors of a graph that computes: its weights are fixed, so what fails depends on the inputs.
_INPUT_ERRORS = (states.InvalidArgument, states.Fail, states.RuntimeException)


def open_session(file: Path, threads: int) -> Any:
    """Load a model for the processor; with one thread, no further one is started. Raises LoadFailed."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    # It remembers a plan of its memory for every shape it has seen, and forgets none.
    options.enable_mem_pattern = False
    options.log_severity_level = _FATAL  # errors are raised; they need not be printed as well
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        # By its path: files of weights lie beside it, and one of more than 2 GB cannot be had as bytes.
        return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise LoadFailed(_describe_load_error(file, str(error))) from error


def run_session(session: Any, feeds: Mapping[str, Any]) -> Sequence[Any]:
    """All outputs in their order. Raises InvalidInputs and ModelFailed."""
    try:
        outputs: Sequence[Any] = session.run(None, feeds)
    except Exception as error:
        message = clean_message(str(error))
        if isinstance(error, _INPUT_ERRORS) and not _OUT_OF_MEMORY.search(message):
            raise InvalidInputs(message) from error
        raise ModelFailed(f"Exception during onnxruntime prediction: {message}") from error
    return outputs


def clean_message(text: str) -> str:
    """A message of onnxruntime without error numbers and places in its source."""
    text = _SOURCE.sub("", _PREFIX.sub("", text.strip()))
    text = _NODE.sub(lambda found: f"node {found[1]}{f' {found[2]!r}' * bool(found[2])}: ", text)
    return " ".join(text.split()).rstrip(".")[:_MAX_MESSAGE]


# ---- models that cannot be loaded

_Describe = Callable[[re.Match[str]], str]


def _describe_load_error(file: Path, text: str) -> str:
    for pattern, describe in _LOAD_ERRORS:
        if found := pattern.search(text):
            return f"{file.name} {describe(found)}"
    folder = f"{file.parent}/"
    reason = clean_message(text).replace(folder, "")
    return f"{file.name} cannot be loaded by onnxruntime {onnxruntime.__version__}: {reason}."


def _describe_opset(found: re.Match[str]) -> str:
    saved, domain, supported = found.groups()
    return (
        f"is of opset {saved} of {domain}; onnxruntime {onnxruntime.__version__} computes those up to "
        f"{supported}. Export it with an opset up to {supported}, or install a newer onnxruntime."
    )


def _describe_format_version(found: re.Match[str]) -> str:
    saved, supported = found.groups()
    return (
        f"is of version {saved} of ONNX's format; onnxruntime {onnxruntime.__version__} reads those up to "
        f"{supported}. Save it with an older onnx, or install a newer onnxruntime."
    )


def _describe_unknown_op(found: re.Match[str]) -> str:
    domain, op = found.groups()
    return (
        f"uses the operator {op} of the domain {domain}, which onnxruntime {onnxruntime.__version__} does "
        "not have. Libraries of operators are not loaded: export the model without them."
    )


def _describe_unknown_standard_op(found: re.Match[str]) -> str:
    op, version = found.groups()
    return (
        f"uses the operator {op}, which opset {version} does not have, as far as onnxruntime "
        f"{onnxruntime.__version__} knows. Export the model again."
    )


def _describe_missing_kernel(found: re.Match[str]) -> str:
    return (
        f"uses the operator {found[1]} in a version ({found[2]}) or with types for which onnxruntime "
        f"{onnxruntime.__version__} has no implementation on CPUs. Export the model with another opset, or "
        "with types such as float."
    )


def _describe_missing_type(found: re.Match[str]) -> str:
    return (
        f"has values of the type {found[1]}, with which onnxruntime {onnxruntime.__version__} cannot compute."
    )


def _describe_missing_data(found: re.Match[str]) -> str:
    name = Path(found[1]).name
    return f"keeps weights in {name}, which is not there. Copy all files that were exported into the folder."


def _describe_missing_locale(found: re.Match[str]) -> str:
    language, _, charset = found[1].partition(".")
    return (
        f"changes the case of texts by the rules of the locale {found[1]}, which this machine does not have. "
        f"Make it: `apt-get install locales && localedef -i {language} -f {charset or 'UTF-8'} {found[1]}`, "
        "and start the server again."
    )


def _describe_outside_data(_: re.Match[str]) -> str:
    return (
        "names a file of weights outside of its folder, which is not read. Save the model with its weights "
        "in the same folder."
    )


_LOAD_ERRORS: Sequence[tuple[re.Pattern[str], _Describe]] = (
    (
        re.compile(
            r"Opset (\d+) is under development.*official support for domain (\S+) is till opset (\d+)",
            re.DOTALL,
        ),
        _describe_opset,
    ),
    (re.compile(r"model IR version: (\d+), max supported IR version: (\d+)"), _describe_format_version),
    (re.compile(r"([\w.]+):(\w+)\(-?\d+\) is not a registered function/op"), _describe_unknown_op),
    (re.compile(r"No Op registered for (\w+) with domain_version of (\d+)"), _describe_unknown_standard_op),
    (
        re.compile(r"(?:Could not find an implementation|Failed to find kernel) for (\w+)\((\d+)\)"),
        _describe_missing_kernel,
    ),
    (re.compile(r"MLDataType for: (\S+) is not currently registered"), _describe_missing_type),
    (re.compile(r'External data path does not exist: "([^"]*)"'), _describe_missing_data),
    (re.compile(r"Failed to construct locale with name: ?([\w.@-]+)"), _describe_missing_locale),
    (re.compile(r"escapes model directory|Absolute paths? not allowed"), _describe_outside_data),
    (
        re.compile(r"INVALID_PROTOBUF|No graph was found"),
        lambda _: "is cut short or is not an ONNX model. Copy the exported file again.",
    ),
)
