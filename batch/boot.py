"""`python -m batch.boot`: a Beam worker of this interpreter, started by an engine or by `batch.pool`.

It takes the place of the program `boot` in Beam's containers, and installs nothing: this environment has all
that the job needs, but the packages of its model, which come with the model (`batch.beam.package_archive`).
Source: https://beam.apache.org/contribute/runner-guide/#the-fn-api
"""

from __future__ import annotations

import argparse
import json
import os
import stat
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl, urlencode

import msgspec

from batch.worker_signs import WorkerVersions, write_sign
from serving.artifacts.storage import FileStore
from serving.config import set_framework_environment
from serving.errors import ServingError

# Among the job's experiments, which reach workers on every engine. Beam splits them at commas.
_EXPERIMENT = "pilotlight_worker="
_ANSWER_WITHIN = 30.0
_EXIT_TROUBLE = 3


def format_experiment(signs_folder: str) -> str:
    """What a job tells its workers: its versions, and where they leave a sign."""
    versions = msgspec.structs.asdict(WorkerVersions.of_this_process())
    return _EXPERIMENT + urlencode({**versions, "signs": signs_folder})


def main(arguments: Sequence[str] | None = None) -> None:
    """Run until the engine ends the worker, or the process that started it is gone."""
    given = _parse_arguments(arguments)
    # There are as many workers as the engine has cores for.
    set_framework_environment()
    _end_with_parent()
    info = _fetch_provision_info(given.provision_endpoint, given.id)
    environment = _build_environment(given, info)
    if trouble := _register_worker(_list_experiments(environment["PIPELINE_OPTIONS"])):
        sys.stderr.write(f"{trouble}\n")
        sys.exit(_EXIT_TROUBLE)
    from apache_beam.runners.worker import sdk_worker_main  # noqa: PLC0415  seconds

    log, harness, _ = sdk_worker_main.create_harness(environment)
    if given.ready_fd is not None:
        os.write(given.ready_fd, b"\n")
        os.close(given.ready_fd)
    try:
        harness.run()
    finally:
        log.close()


def _parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m batch.boot", description=__doc__)
    parser.add_argument("--id", required=True)
    parser.add_argument("--provision_endpoint", required=True)
    for name in ("logging", "control", "artifact"):
        parser.add_argument(f"--{name}_endpoint", default="")
    parser.add_argument("--ready-fd", type=int)
    return parser.parse_known_args(arguments)[0]


def _end_with_parent() -> None:
    """End when stdin does, if that is a pipe: then the process that started this one has it in its hand."""

    def wait() -> None:
        while os.read(0, 4096):
            pass
        os._exit(_EXIT_TROUBLE)

    try:
        is_pipe = stat.S_ISFIFO(os.fstat(0).st_mode)
    except OSError:
        return
    if is_pipe:
        threading.Thread(target=wait, name="parent", daemon=True).start()


def _fetch_provision_info(endpoint: str, worker: str) -> Any:
    import grpc  # noqa: PLC0415
    from apache_beam.portability.api import (  # noqa: PLC0415
        beam_provision_api_pb2,
        beam_provision_api_pb2_grpc,
    )

    with grpc.insecure_channel(endpoint) as channel:
        stub = beam_provision_api_pb2_grpc.ProvisionServiceStub(channel)
        answer = stub.GetProvisionInfo(
            beam_provision_api_pb2.GetProvisionInfoRequest(),
            metadata=(("worker_id", worker),),
            timeout=_ANSWER_WITHIN,
            wait_for_ready=True,
        )
    return answer.info


def _build_environment(given: argparse.Namespace, info: Any) -> Mapping[str, str]:
    """What Beam's worker reads from its environment; the engine's answer wins over the command line."""
    from google.protobuf import json_format  # noqa: PLC0415

    found = {
        "WORKER_ID": given.id,
        "PIPELINE_OPTIONS": json_format.MessageToJson(info.pipeline_options),
        "SEMI_PERSISTENT_DIRECTORY": tempfile.gettempdir(),
        "LOGGING_API_SERVICE_DESCRIPTOR": _describe(info.logging_endpoint.url or given.logging_endpoint),
        "CONTROL_API_SERVICE_DESCRIPTOR": _describe(info.control_endpoint.url or given.control_endpoint),
        "RUNNER_CAPABILITIES": " ".join(info.runner_capabilities),
    }
    if info.status_endpoint.url:
        found["STATUS_API_SERVICE_DESCRIPTOR"] = _describe(info.status_endpoint.url)
    return found


def _describe(url: str) -> str:
    """An ApiServiceDescriptor in protobuf's text format."""
    return f"url: {json.dumps(url)}"


def _list_experiments(options: str) -> Sequence[str]:
    given = json.loads(options)
    found = given.get("beam:option:experiments:v1") or given.get("options", {}).get("experiments") or ()
    return [str(one) for one in found]


def _register_worker(experiments: Sequence[str]) -> str:
    """Write a sign of this worker; returns why it cannot work, "" if it can."""
    told = [dict(parse_qsl(one.removeprefix(_EXPERIMENT))) for one in experiments if _EXPERIMENT in one]
    if not told:
        return ""
    wanted = WorkerVersions(told[0]["python"], told[0]["beam"])
    trouble = WorkerVersions.of_this_process().explain_difference(wanted)
    try:
        write_sign(FileStore(), told[0]["signs"], trouble)
    except (ServingError, OSError) as error:
        # The job fails at this too, with the same words, when results are written.
        sys.stderr.write(f"{told[0]['signs']} cannot be written: {error}\n")
    return trouble


if __name__ == "__main__":
    main()
