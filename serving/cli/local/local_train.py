"""`pilotlight local train`."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from serving import config
from serving.cli.command_output import CommandOutput
from serving.cli.console import print_warning
from serving.cli.flags.yaml_file import read_mapping
from serving.errors import InvalidArgument
from serving.predictor.interpreters import resolve_interpreter_path

if TYPE_CHECKING:
    from serving.resources import HyperparameterSpec, TrainingInput
    from training.local_run import LocalProgram
    from training.messages import ReplicaGroup

# As gcloud has them.
_DEFAULT_COUNT, _DEFAULT_PORT = 2, 27182

# As the API has it.
_MAX_COUNT, _LAST_PORT = 1000, 65535

_Count = Annotated[
    int | None, typer.Option(min=0, max=_MAX_COUNT, help="With --distributed.", show_default=False)
]


def train_locally(
    output: CommandOutput,  # for the flags that all commands have
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[-- ARGUMENTS]", help="Arguments for the program.")
    ] = None,
    *,
    module_name: Annotated[str, typer.Option(metavar="MODULE", help="The module that is run.")],
    package_path: Annotated[
        Path,
        typer.Option(
            metavar="FOLDER",
            help="The folder of the package that has the module; the program runs in its parent folder.",
        ),
    ] = Path(),
    job_dir: Annotated[
        str, typer.Option(metavar="FOLDER", help="Given to the program as --job-dir.", show_default=False)
    ] = "",
    python: Annotated[
        str,
        typer.Option(
            metavar="PATH",
            help="The Python that runs it; by default that of this command.",
            show_default=False,
        ),
    ] = "",
    distributed: Annotated[
        bool, typer.Option("--distributed", help="Run a cluster: a master, workers, parameter servers.")
    ] = False,
    worker_count: _Count = None,
    parameter_server_count: _Count = None,
    evaluator_count: _Count = None,
    tuning_config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            metavar="FILE",
            help="A job in YAML; with trainingInput.hyperparameters many trials are run, and listed at last.",
            show_default=False,
        ),
    ] = None,
    start_port: Annotated[
        int, typer.Option(min=1, max=_LAST_PORT, help="The first of the ports of the replicas.")
    ] = _DEFAULT_PORT,
) -> None:
    """Run a training program here, without a server, as a training job runs it.

    Without --distributed it is one process at this terminal. The exit code is that of the program; of a
    search by --config it is 0 if it came to its end.

    Example: pilotlight local train --module-name trainer.task --package-path ./trainer -- --epochs 2
    """
    from training.local_run import (  # noqa: PLC0415  start-up time of the other commands
        ClusterRun,
        LocalCluster,
        LocalProgram,
        find_primary_name,
        run_alone,
    )

    folder = package_path.absolute()
    if not folder.is_dir():
        raise InvalidArgument(f"--package-path: there is no folder {folder}.")
    sent = _read_input(tuning_config)
    spec = sent.hyperparameters
    folder_words = ("--job-dir", job_dir) if job_dir and spec is None else ()
    given = (*(arguments or sent.args), *folder_words)
    program = LocalProgram(
        module_name, given, resolve_interpreter_path(python) if python else sys.executable, folder.parent
    )
    environment = config.environment_without_settings()
    counts = (worker_count, parameter_server_count, evaluator_count)
    if not distributed:
        if any(counts):
            print_warning("The counts of replicas are used with --distributed only.")
        if spec is not None:
            raise typer.Exit(_tune(output, program, spec, environment, job_dir=job_dir))
        with _report_start_errors(program.python):
            code = run_alone(program, environment)
        raise typer.Exit(code)
    cluster = LocalCluster(
        _DEFAULT_COUNT if worker_count is None else worker_count,
        _DEFAULT_COUNT if parameter_server_count is None else parameter_server_count,
        evaluator_count or 0,
        start_port,
    )
    if cluster.last_port > _LAST_PORT:
        raise InvalidArgument(
            f"--start-port: the replicas need the ports {start_port} to {cluster.last_port}, and the last "
            f"there is is {_LAST_PORT}."
        )
    if spec is not None:
        code = _tune(output, program, spec, environment, job_dir=job_dir, groups=cluster.groups)
        raise typer.Exit(code)
    with _report_start_errors(program.python):
        code = ClusterRun(program, cluster, environment, find_primary_name(program.python)).run()
    raise typer.Exit(code)


def _read_input(file: Path | None) -> TrainingInput:
    """What a file says of a job. Raises InvalidArgument."""
    from serving.resources import Job, TrainingInput, resource_from_json  # noqa: PLC0415  start-up time

    if file is None:
        return TrainingInput()
    job = resource_from_json(Job, read_mapping(file, "a job, with `trainingInput: {...}`"))
    return job.training_input or TrainingInput()


def _tune(
    output: CommandOutput,
    program: LocalProgram,
    spec: HyperparameterSpec,
    environment: Mapping[str, str],
    *,
    job_dir: str,
    groups: Sequence[ReplicaGroup] = (),
) -> int:
    """Run trials and list them; returns the exit code."""
    from serving.cli.trials.job_trials import show_table  # noqa: PLC0415  start-up time
    from serving.cli.trials.local_tuning import LocalTuning  # noqa: PLC0415

    tuning = LocalTuning(program, groups, spec, environment, _make_absolute(job_dir))
    code = tuning.run()
    show_table(output, tuning.build_table())
    return code


def _make_absolute(job_dir: str) -> str:
    is_local = job_dir and "://" not in job_dir
    return str(Path(job_dir).absolute()) if is_local else job_dir


@contextlib.contextmanager
def _report_start_errors(python: str) -> Iterator[None]:
    """Raises InvalidArgument where a process cannot be started."""
    try:
        yield
    except OSError as error:
        raise InvalidArgument(f"The program cannot be started with {python}: {error.strerror}.") from error
