"""Online and batch predictions of the same rows, for `pilotlight parity`."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO

import orjson

from serving.cli.api_client import ApiClient
from serving.cli.console import print_note
from serving.cli.flags.batch_flags import BatchFlags
from serving.cli.flags.common_flags import make_absolute
from serving.cli.parity.result_comparison import RowRefusal, RowResult
from serving.config import ClientConfig, NodeConfig, environment_without_settings
from serving.errors import Internal, InvalidArgument, NotFound, Unavailable
from serving.scratch_folders import scratch_folder

# The number of instances that gcloud puts into a request.
REQUEST_ROWS = 100

_NODE = (
    "from autoscaler.linux import die_with_parent; die_with_parent({parent}); "
    "from serving.cli import main; main()"
)
_STOP_SECONDS = 10


@dataclass(frozen=True, slots=True)
class InputRow:
    """A line of the input: its number from 1, the offset of its first byte, and the line."""

    number: int
    offset: int
    line: bytes


def parse_rows(content: bytes, *, text: bool) -> list[InputRow]:
    """The rows of an input file. A blank line is none, unless lines are texts.

    Raises InvalidArgument when there are none.
    """
    rows = []
    offset = 0
    for number, line in enumerate(content.removesuffix(b"\n").split(b"\n"), start=1):
        if text or line.strip():
            rows.append(InputRow(number, offset, line))
        offset += len(line) + 1
    if not content.strip():
        raise InvalidArgument("The input has no rows.")
    return rows


@dataclass(frozen=True, slots=True)
class OnlinePredictor:
    """Predicts rows online, with requests to a model or version by its full name."""

    client: ApiClient
    name: str
    signature: str | None
    text: bool

    def predict_rows(self, rows: Sequence[InputRow], size: int) -> list[RowResult]:
        """The answer to each row, `size` rows in a request.

        A request that is refused is halved until the rows at fault are found. Raises other errors.
        """
        instances = [self._encode_instance(row) for row in rows]
        sendable = [instance for instance in instances if not isinstance(instance, RowRefusal)]
        answers = iter(
            [
                answer
                for start in range(0, len(sendable), size)
                for answer in self._predict_instances(sendable[start : start + size])
            ]
        )
        return [instance if isinstance(instance, RowRefusal) else next(answers) for instance in instances]

    def _encode_instance(self, row: InputRow) -> bytes | RowRefusal:
        """What a request holds for a row: the line itself, so that every number stays as it was written."""
        line = row.line.removesuffix(b"\r")
        try:
            if self.text:
                return orjson.dumps(line.decode())
            orjson.loads(line)
        except ValueError as error:
            return RowRefusal(f"The row cannot be sent: {error}")
        return line

    def _predict_instances(self, instances: Sequence[bytes]) -> list[RowResult]:
        try:
            predictions = self.client.predict(self.name, self._build_body(instances)).get("predictions")
        except (InvalidArgument, Internal) as error:
            if len(instances) == 1:
                return [RowRefusal(error.message)]
            middle = len(instances) // 2
            return self._predict_instances(instances[:middle]) + self._predict_instances(instances[middle:])
        if not isinstance(predictions, list) or len(predictions) != len(instances):
            raise Internal(f"{len(instances)} instances were sent, and not as many predictions came back.")
        return predictions

    def _build_body(self, instances: Sequence[bytes]) -> bytes:
        fields = b"" if self.signature is None else b',"signature_name":' + orjson.dumps(self.signature)
        return b'{"instances":[' + b",".join(instances) + b"]" + fields + b"}"


@contextlib.contextmanager
def open_batch_folder(output_path: str | None) -> Iterator[str]:
    """A folder for a batch prediction's files: below `output_path`, where they stay, or a temporary one."""
    if output_path is not None:
        yield make_absolute(output_path).rstrip("/")
        return
    with scratch_folder("parity") as folder:
        yield str(folder)


def write_batch_input(folder: str, content: bytes, signature: str | None) -> BatchFlags:
    """Write the rows to the folder; returns the flags of their batch prediction."""
    from serving.artifacts.storage import FileStore  # noqa: PLC0415  start-up time of the other commands

    rows = f"{folder}/rows.jsonl"
    FileStore().write(rows, content)
    return BatchFlags(input_paths=[rows], output_path=f"{folder}/results", signature_name=signature)


def read_batch_results(folder: str, rows: Sequence[InputRow]) -> list[RowResult]:
    """The answer to each row, from a batch prediction's files. Raises Internal if they are not as many."""
    results = _read_lines(f"{folder}/prediction.results-*")
    # Parsed like the answers of the server, so that numbers are comparable.
    predictions = [orjson.loads(line) for line in results]
    errors = [orjson.loads(line) for line in _read_lines(f"{folder}/prediction.errors-*")]
    refused = {error["offset"]: RowRefusal(error["reason"]) for error in errors}
    if len(predictions) + len(refused) != len(rows):
        raise Internal(
            f"The batch prediction wrote {len(predictions)} results and {len(refused)} errors for "
            f"{len(rows)} rows; they are in {folder}."
        )
    # Result files hold consecutive pieces of the input, in the order of their names.
    good = iter(predictions)
    return [refused[row.offset] if row.offset in refused else next(good) for row in rows]


def _read_lines(pattern: str) -> Iterator[bytes]:
    from serving.artifacts.storage import FileStore  # noqa: PLC0415  start-up time of the other commands

    files = FileStore()
    try:
        found = files.glob(pattern)
    except NotFound:
        return
    for item in found:
        yield from files.read(item.uri).splitlines()


@contextlib.contextmanager
def run_node_process(config: NodeConfig) -> Iterator[ApiClient]:
    """Run a node that serves a model folder, as a process; yields a client for it."""
    flags = {
        "--model-dir": config.model_dir,
        "--framework": config.framework,
        "--prediction-class": config.prediction_class,
        "--prediction-method": config.prediction_method,
        "--package-uris": config.package_uris,
        "--interpreter": config.interpreter,
        "--host": config.host,
        "--single-output": config.single_output,
    }
    given = [word for flag, value in flags.items() if value for word in (flag, value)]
    given += ["--long-decimals"] if config.long_decimals else []
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", _NODE.format(parent=os.getpid()), "node", "--port", "0", *given],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=environment_without_settings(),
        )
        with process:
            try:
                with ApiClient(ClientConfig(server=_wait_until_ready(process, log))) as client:
                    yield client
            finally:
                process.terminate()
                try:
                    process.wait(_STOP_SECONDS)
                except subprocess.TimeoutExpired:
                    process.kill()


def _wait_until_ready(process: subprocess.Popen[str], log: IO[str]) -> str:
    """The node's address, once it is ready. Raises Unavailable with its last message."""
    for line in process.stdout or ():
        if line.startswith("Ready on "):
            return line.removeprefix("Ready on ").rpartition(": ")[0]
        print_note(line.rstrip())
    process.wait()
    log.seek(0)
    lines = log.read().splitlines()
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    raise Unavailable((errors or lines or ["The node ended without a word."])[-1])
