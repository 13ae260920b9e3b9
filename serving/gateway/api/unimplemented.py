"""The methods of the discovery document that this server does not offer: a deliberate 501 each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from serving.errors import Unimplemented
from serving.gateway.api.requests import answer_error

_PROJECT = "/v1/projects/{project:id}"
_MODEL = _PROJECT + "/models/{model:id}"
_JOB = _PROJECT + "/jobs/{job:id}"
_LOCATION = _PROJECT + "/locations/{location:id}"
_STUDIES = _LOCATION + "/studies"
_TRIALS = _STUDIES + "/{study:id}/trials"

METHODS = (
    ("projects.explain", "POST", "/v1/projects/{name:path}:explain"),
    ("projects.jobs.getIamPolicy", "GET", _JOB + ":getIamPolicy"),
    ("projects.jobs.setIamPolicy", "POST", _JOB + ":setIamPolicy"),
    ("projects.jobs.testIamPermissions", "POST", _JOB + ":testIamPermissions"),
    ("projects.models.getIamPolicy", "GET", _MODEL + ":getIamPolicy"),
    ("projects.models.setIamPolicy", "POST", _MODEL + ":setIamPolicy"),
    ("projects.models.testIamPermissions", "POST", _MODEL + ":testIamPermissions"),
    ("projects.locations.operations.get", "GET", _LOCATION + "/operations/{operation:id}"),
    ("projects.locations.operations.cancel", "POST", _LOCATION + "/operations/{operation:id}:cancel"),
    ("projects.locations.studies.create", "POST", _STUDIES),
    ("projects.locations.studies.list", "GET", _STUDIES),
    ("projects.locations.studies.get", "GET", _STUDIES + "/{study:id}"),
    ("projects.locations.studies.delete", "DELETE", _STUDIES + "/{study:id}"),
    ("projects.locations.studies.trials.create", "POST", _TRIALS),
    ("projects.locations.studies.trials.list", "GET", _TRIALS),
    ("projects.locations.studies.trials.listOptimalTrials", "POST", _TRIALS + ":listOptimalTrials"),
    ("projects.locations.studies.trials.suggest", "POST", _TRIALS + ":suggest"),
    ("projects.locations.studies.trials.get", "GET", _TRIALS + "/{trial:id}"),
    ("projects.locations.studies.trials.delete", "DELETE", _TRIALS + "/{trial:id}"),
    ("projects.locations.studies.trials.addMeasurement", "POST", _TRIALS + "/{trial:id}:addMeasurement"),
    (
        "projects.locations.studies.trials.checkEarlyStoppingState",
        "POST",
        _TRIALS + "/{trial:id}:checkEarlyStoppingState",
    ),
    ("projects.locations.studies.trials.complete", "POST", _TRIALS + "/{trial:id}:complete"),
    ("projects.locations.studies.trials.stop", "POST", _TRIALS + "/{trial:id}:stop"),
)


def routes() -> list[Route]:
    """A route for each, named by the method."""
    return [Route(path, _refuse(name), methods=[verb], name=name) for name, verb, path in METHODS]


def _refuse(name: str) -> Callable[[Request], Awaitable[Response]]:
    async def refuse(_: Request) -> Response:
        return answer_error(Unimplemented(f"The method ml.{name} is not implemented by this server."))

    return refuse
