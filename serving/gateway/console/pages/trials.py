"""The trials of a tuning job, and the models that a training job has made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import urlencode

import orjson
from starlette.responses import Response

from serving.errors import FailedPrecondition
from serving.gateway.console.pages.jobs import FINAL_STATES, JOB_PATH
from serving.gateway.console.visit import Visit, page

Json = dict[str, Any]

_BEST_TRIAL = "best"


@dataclass(frozen=True, slots=True)
class TrialRow:
    """A trial that has a value; `best` is the best value of the trials up to this one, by their numbers."""

    number: int
    state: str
    value: float
    best: float
    step: str
    parameters: Mapping[str, str]
    stopped_early: bool


@dataclass(frozen=True, slots=True)
class TrialTable:
    """`rows` are the best first."""

    metric: str
    parameters: tuple[str, ...]
    rows: tuple[TrialRow, ...]

    @property
    def as_json(self) -> str:
        """For the script that draws them."""
        return orjson.dumps(asdict(self)).decode()


def build_trial_table(job: Json) -> TrialTable:
    """Raises FailedPrecondition for a job without trials."""
    given, output = job.get("trainingInput", {}), job.get("trainingOutput", {})
    if "hyperparameters" not in given:
        raise FailedPrecondition(f"{job['jobId']} is no tuning job: it has no trials.")
    choose_better = min if given["hyperparameters"].get("goal") == "MINIMIZE" else max
    trials = [one for one in output.get("trials", []) if "objectiveValue" in one.get("finalMetric", {})]
    best_by_number: dict[int, float] = {}
    best: float | None = None
    for number, value in sorted((_read_number(one), _read_objective(one)) for one in trials):
        best = value if best is None else choose_better(best, value)
        best_by_number[number] = best
    rows = tuple(
        TrialRow(
            _read_number(one),
            one.get("state", ""),
            _read_objective(one),
            best_by_number[_read_number(one)],
            one["finalMetric"].get("trainingStep", ""),
            one.get("hyperparameters", {}),
            one.get("isTrialStoppedEarly", False),
        )
        for one in trials
    )
    names = tuple(dict.fromkeys(name for row in rows for name in row.parameters))
    metric = given["hyperparameters"].get("hyperparameterMetricTag") or "training/hptuning/metric"
    return TrialTable(metric, names, rows)


def _read_number(trial: Json) -> int:
    return int(trial["trialId"])


def _read_objective(trial: Json) -> float:
    return float(trial["finalMetric"]["objectiveValue"])


async def show_trials(visit: Visit) -> Response:
    return visit.render("trials.html", **await _read_table(visit))


async def show_importance(visit: Visit) -> Response:
    """The share of each parameter. The page does not wait for it: the first answer takes seconds."""
    found = await visit.call(
        "pilotlight.jobs.importance", project=visit.project, job=visit.path_params["job"]
    )
    shares = sorted(found.get("shares", {}).items(), key=lambda item: -item[1])
    return visit.render_partial("_importance.html", done=True, shares=shares)


async def show_trial_table(visit: Visit) -> Response:
    values = await _read_table(visit)
    return visit.render_partial("_trials.html", done=values["has_ended"], **values)


async def _read_table(visit: Visit) -> Json:
    job = await visit.call("projects.jobs.get", project=visit.project, job=visit.path_params["job"])
    return {
        "project": visit.project,
        "id": visit.path_params["job"],
        "table": build_trial_table(job),
        "has_ended": job.get("state") in FINAL_STATES,
        "may_deploy": visit.may("projects.models.create", project=visit.project),
    }


async def show_models(visit: Visit) -> Response:
    """The folders that can be deployed: with one only, straight to the form that deploys it."""
    trial, project, job_id = visit.query.get("trial", ""), visit.project, visit.path_params["job"]
    job = await visit.call("projects.jobs.get", project=project, job=job_id)
    if not trial and "hyperparameters" in job.get("trainingInput", {}):
        trial = _BEST_TRIAL
    query = {"trial": trial} if trial else {}
    found = await visit.call("pilotlight.jobs.models", query=query, project=project, job=job_id)
    version = job.get("trainingInput", {}).get("runtimeVersion", "")
    links = [
        (folder, f"/projects/{project}/deploy?{urlencode({'folder': folder, 'runtime_version': version})}")
        for folder in found.get("models", [])
    ]
    if len(links) == 1 and visit.may("projects.models.create", project=project):
        return visit.redirect(links[0][1])
    return visit.render(
        "job_models.html", id=job_id, folder=found.get("folder", ""), links=links, trial=trial
    )


ROUTES = (
    page(f"{JOB_PATH}/trials", show_trials),
    page(f"{JOB_PATH}/trial-table", show_trial_table),
    page(f"{JOB_PATH}/importance", show_importance),
    page(f"{JOB_PATH}/models", show_models),
)
