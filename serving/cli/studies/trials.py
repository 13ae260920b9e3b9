"""`pilotlight studies`: the commands for the trials of a study."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from serving.cli.api_client import ApiClient
from serving.cli.command_output import CommandOutput, TableColumns
from serving.cli.commands import resource_commands
from serving.cli.flags.common_flags import SelectionFlags, drop_none
from serving.cli.formats.value_parsers import merge_pairs
from serving.cli.studies.studies import StudyArgument, resolve_study_name

_SUGGESTION_SECONDS = 120.0

TrialArgument = Annotated[
    int, typer.Argument(metavar="TRIAL", help="The number of the trial.", show_default=False)
]
MetricsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--metric",
        metavar="METRIC=VALUE,...",
        help="What was measured. May be given several times.",
        show_default=False,
    ),
]
StepOption = Annotated[
    int | None, typer.Option("--step", min=0, help="After how many steps.", show_default=False)
]
ElapsedOption = Annotated[
    float | None, typer.Option("--elapsed", min=0, help="After how many seconds.", show_default=False)
]


def list_trials(
    client: ApiClient, output: CommandOutput, study: StudyArgument, selection: SelectionFlags
) -> None:
    """List the trials of a study with their parameters and results, in the order of their numbers.

    Example: pilotlight studies trials flowers --filter state:COMPLETED
    """
    name = resolve_study_name(client, study)
    config = client.call("GET", name)["studyConfig"]
    found = client.list_resources(f"{name}/trials", "trials", {})
    output.show_list(found, _build_columns(config), selection)


def list_optimal_trials(client: ApiClient, output: CommandOutput, study: StudyArgument) -> None:
    """Show the best trial; where there are several metrics, those that no other beats in all of them.

    Example: pilotlight studies optimal flowers
    """
    name = resolve_study_name(client, study)
    config = client.call("GET", name)["studyConfig"]
    found = client.call("POST", f"{name}/trials:listOptimalTrials", {}).get("trials", [])
    output.show_list(found, _build_columns(config))


def suggest_trials(
    client: ApiClient,
    output: CommandOutput,
    study: StudyArgument,
    *,
    client_id: Annotated[
        str,
        typer.Option(
            help="Who runs the trials. With the same id you get trials again that you have not completed.",
            show_default=False,
        ),
    ],
    count: Annotated[int, typer.Option(min=1, max=100, help="How many trials.")] = 1,
) -> None:
    """Get trials to run: parameters that are worth trying next.

    Exit code 1 with RESOURCE_EXHAUSTED when there is nothing left to try.

    Example: pilotlight studies suggest flowers --client-id me --format json
    """
    name = resolve_study_name(client, study)
    config = client.call("GET", name)["studyConfig"]
    body = {"clientId": client_id, "suggestionCount": count}
    operation = client.call("POST", f"{name}/trials:suggest", body, timeout=_SUGGESTION_SECONDS)
    output.show_list(operation["response"].get("trials", []), _build_columns(config))


def add_measurement(
    client: ApiClient,
    output: CommandOutput,
    study: StudyArgument,
    trial: TrialArgument,
    *,
    metric: MetricsOption = None,
    step: StepOption = None,
    elapsed: ElapsedOption = None,
) -> None:
    """Report what was measured of a trial while it runs.

    Example: pilotlight studies add-measurement flowers 3 --metric loss=0.31 --step 20
    """
    measurement = _build_measurement(metric, step, elapsed)
    if measurement is None:
        raise typer.BadParameter("Give at least one --metric, as in --metric loss=0.31.")
    name = _trial_name(client, study, trial)
    changed = client.call("POST", f"{name}:addMeasurement", {"measurement": measurement})
    output.report_change(f"Added a measurement to trial {trial}.", changed)


def complete_trial(
    client: ApiClient,
    output: CommandOutput,
    study: StudyArgument,
    trial: TrialArgument,
    *,
    metric: MetricsOption = None,
    step: StepOption = None,
    elapsed: ElapsedOption = None,
    infeasible: Annotated[
        str | None,
        typer.Option(
            metavar="REASON",
            help="The trial has no result: its parameters do not work, for this reason.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """End a trial with its result, or with the last measurement when no --metric is given.

    Example: pilotlight studies complete flowers 3 --metric loss=0.29
    """
    if infeasible is not None and metric is not None:
        raise typer.BadParameter("Give either --metric or --infeasible, not both.")
    body = drop_none(
        finalMeasurement=_build_measurement(metric, step, elapsed),
        trialInfeasible=None if infeasible is None else True,
        infeasibleReason=infeasible,
    )
    ended = client.call("POST", f"{_trial_name(client, study, trial)}:complete", body)
    output.report_change(f"Completed trial {trial}.", ended)


def check_early_stopping(
    client: ApiClient, output: CommandOutput, study: StudyArgument, trial: TrialArgument
) -> None:
    """Say whether a trial should end before its time, by the study's rule of early stopping: true or false.

    Example: pilotlight studies check-early-stopping flowers 3
    """
    operation = client.call("POST", f"{_trial_name(client, study, trial)}:checkEarlyStoppingState", {})
    if output.format is not None:
        output.show(operation)
    else:
        output.print_line("true" if operation["response"].get("shouldStop") else "false")


def stop_trial(client: ApiClient, output: CommandOutput, study: StudyArgument, trial: TrialArgument) -> None:
    """Ask whoever runs a trial to end it; it is STOPPING until it is completed.

    Example: pilotlight studies stop flowers 3
    """
    stopped = client.call("POST", f"{_trial_name(client, study, trial)}:stop", {})
    output.report_change(f"Asked for trial {trial} to be stopped.", stopped)


def _trial_name(client: ApiClient, study: str, trial: int) -> str:
    return f"{resolve_study_name(client, study)}/trials/{trial}"


def _build_measurement(
    metrics: Sequence[str] | None, step: int | None, elapsed: float | None
) -> dict[str, Any] | None:
    """A measurement as the API has it; None without metrics."""
    given = merge_pairs(metrics, "--metric")
    if not given:
        return None
    return drop_none(
        metrics=[{"metric": name, "value": _parse_number(text)} for name, text in given.items()],
        stepCount=None if step is None else str(step),
        elapsedTime=None if elapsed is None else f"{elapsed:.9f}s",
    )


def _parse_number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no number.", param_hint="--metric") from None


def _build_columns(config: Mapping[str, Any]) -> TableColumns:
    """A column for each metric and each parameter, children included."""
    metrics = [metric["metric"] for metric in config["metrics"]]
    parameters = list(dict.fromkeys(_list_parameter_names(config["parameters"])))
    return {
        "TRIAL": lambda trial: resource_commands.extract_id(trial["name"]),
        "STATE": lambda trial: "INFEASIBLE" if trial.get("trialInfeasible") else trial["state"],
        **{name: functools.partial(_read_metric, name=name) for name in metrics},
        **{name: functools.partial(_format_parameter, name=name) for name in parameters},
    }


def _list_parameter_names(specs: Sequence[Mapping[str, Any]]) -> list[str]:
    return [
        name
        for spec in specs
        for name in (spec["parameter"], *_list_parameter_names(spec.get("childParameterSpecs", ())))
    ]


def _read_metric(trial: Mapping[str, Any], name: str) -> str:
    """Its final value, or the last one that was measured so far."""
    measurements = [*trial.get("measurements", ()), trial.get("finalMeasurement", {})]
    values = [
        one["value"] for found in measurements for one in found.get("metrics", ()) if one["metric"] == name
    ]
    return f"{values[-1]:.6g}" if values else ""


def _format_parameter(trial: Mapping[str, Any], name: str) -> str:
    for one in trial["parameters"]:
        if one["parameter"] == name:
            return (
                f"{one['floatValue']:.6g}"
                if "floatValue" in one
                else one.get("intValue", one.get("stringValue", ""))
            )
    return ""
