"""Reads instances from files into the body of a prediction request."""

from __future__ import annotations

import codecs
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer

from serving.cli.flags.common_flags import SignatureNameOption, parse_file_path
from serving.errors import InvalidArgument
from serving.http_headers import JSON, NPY


def _file_option(flag: str, text: str) -> Any:
    return typer.Option(flag, parser=parse_file_path, metavar="FILE", help=text, show_default=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceFlags:
    """The flags that say where the instances are; FILE may be `-` for standard input."""

    json_instances: Annotated[
        Path | None,
        _file_option("--json-instances", "One JSON value per line, each an instance; - is stdin."),
    ] = None
    json_request: Annotated[
        Path | None,
        _file_option(
            "--json-request",
            'A whole request, {"instances": ...}; - is stdin. It is sent as it is, with all its other fields '
            "(gcloud kept only the instances).",
        ),
    ] = None
    text_instances: Annotated[
        Path | None, _file_option("--text-instances", "One text per line, each an instance; - is stdin.")
    ] = None
    npy: Annotated[
        Path | None,
        _file_option(
            "--npy",
            "An array as numpy.save writes it, its first dimension that of the instances; - is stdin. It is "
            "sent as it is: the fastest way for many numbers.",
        ),
    ] = None
    signature_name: SignatureNameOption = None

    @property
    def content_type(self) -> str:
        return JSON if self.npy is None else NPY

    def check_flags(self) -> None:
        """Raises BadParameter unless they name exactly one file."""
        if sum(file is not None for file, _ in self._list_sources()) != 1:
            raise typer.BadParameter(
                "Give exactly one of --json-instances, --json-request, --text-instances and --npy."
            )
        if self.npy is not None and self.signature_name is not None:
            raise typer.BadParameter("--signature-name goes into JSON: an array has no place for it.")

    def read_body(self) -> bytes:
        """The body to send.

        Raises BadParameter as `check_flags`, and InvalidArgument naming the file and the line at fault.
        """
        self.check_flags()
        [(file, encode)] = [(file, encode) for file, encode in self._list_sources() if file is not None]
        body = encode(_describe_file(file), read_file_or_stdin(file))
        return body if self.signature_name is None else _add_signature_name(body, self.signature_name)

    def _list_sources(self) -> list[tuple[Path | None, Callable[[str, bytes], bytes]]]:
        """The files that may be given, each with what makes a body of it."""
        return [
            (self.json_instances, _encode_json_lines),
            (self.json_request, _check_request),
            (self.text_instances, _encode_text_lines),
            (self.npy, _pass_through),
        ]


def _describe_file(file: Path) -> str:
    return "Standard input" if str(file) == "-" else str(file)


def read_file_or_stdin(file: Path) -> bytes:
    """What a file, or standard input, holds. Raises InvalidArgument when it cannot be read."""
    try:
        content = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
        return content.removeprefix(codecs.BOM_UTF8)
    except OSError as error:
        raise InvalidArgument(f"Cannot read {file}: {error.strerror}.") from error


def _encode_json_lines(title: str, content: bytes) -> bytes:
    """The lines themselves, so that every number stays as it was written."""
    lines = _split_lines(title, content)
    for number, line in enumerate(lines, start=1):
        try:
            orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise InvalidArgument(
                f"{title}, line {number}: not a JSON value ({error.msg} at column {error.colno})."
            ) from error
    return b'{"instances":[' + b",".join(lines) + b"]}"


def _encode_text_lines(title: str, content: bytes) -> bytes:
    lines = _split_lines(title, content)
    try:
        return orjson.dumps({"instances": [line.decode() for line in lines]})
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"{title}: not UTF-8 text ({error}).") from error


def _check_request(title: str, content: bytes) -> bytes:
    try:
        request = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise InvalidArgument(
            f"{title}: not JSON ({error.msg} at line {error.lineno} column {error.colno})."
        ) from error
    if not isinstance(request, dict):
        raise InvalidArgument(f'{title}: a request is a JSON object with "instances".')
    return content


def _pass_through(_: str, content: bytes) -> bytes:
    return content


def _split_lines(title: str, content: bytes) -> list[bytes]:
    lines = [line.removesuffix(b"\r") for line in content.removesuffix(b"\n").split(b"\n")]
    if lines == [b""]:
        raise InvalidArgument(f"{title}: there are no instances.")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            raise InvalidArgument(f"{title}, line {number}: an empty line is no instance.")
    return lines


def _add_signature_name(body: bytes, signature: str) -> bytes:
    return orjson.dumps({**orjson.loads(body), "signature_name": signature})
