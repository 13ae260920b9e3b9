"""Every method and every role, beside the contract's table, on the whole gateway.

Both tables are written down here anew, from sections 1.1 and 9.1 of the AI Platform contract.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from serving.config import ServeConfig
from serving.gateway.app import Gateway
from serving.gateway.methods import PREDICTION_METHODS
from serving.gateway.state.store import SqliteStore
from tests.serving.gateway.access.world import Api, run
from tests.wire.test_discovery import DISCOVERED

# Of section 9.1: the roles that hold a permission. `owner` and `editor` are as `ml.admin`, `viewer` is as
# `ml.viewer` and may predict.
A, D, V, MO, MU, JO, OO = (
    "admin",
    "developer",
    "viewer",
    "modelOwner",
    "modelUser",
    "jobOwner",
    "operationOwner",
)
GROUPS: dict[str, tuple[str, ...]] = {
    "jobs.create": (A, D, JO),
    "jobs.get jobs.list": (A, D, V, JO),
    "jobs.cancel jobs.update": (A, JO),
    "jobs.getIamPolicy": (A, D, JO),
    "jobs.setIamPolicy": (A, JO),
    "models.create": (A, D, MO),
    "models.get": (A, D, V, MO, MU),
    "models.list": (A, D, V, MO),
    "models.predict": (A, D, MO, MU, "basic viewer"),
    "models.update models.delete": (A, MO),
    "models.getIamPolicy": (A, D, MO),
    "models.setIamPolicy": (A, MO),
    "versions.create versions.update versions.delete": (A, MO),
    "versions.get versions.list": (A, D, V, MO, MU),
    "logging.logEntries.list": (A, D, MO),
    "operations.get operations.list": (A, D, V, OO),
    "operations.cancel": (A, OO),
    "locations.get locations.list projects.getConfig": (A, D, V),
    "studies.get studies.list trials.get trials.list": (A, D, V),
    "studies.create studies.delete trials.create trials.update trials.delete": (A, D),
}
HOLDERS = {permission: set(roles) for names, roles in GROUPS.items() for permission in names.split()}
ROLES = [f"ml.{role}" for role in (A, D, V, MO, MU, JO, OO)] + ["owner", "editor", "viewer"]

# Methods whose permission is not that of their name.
SPECIAL = {
    "explain": "models.predict",
    "predict": "models.predict",
    "getConfig": "projects.getConfig",
    "models.patch": "models.update",
    "models.versions.setDefault": "models.update",
    "models.versions.patch": "versions.update",
    "jobs.patch": "jobs.update",
    "locations.studies.trials.suggest": "trials.create",
    "locations.studies.trials.listOptimalTrials": "trials.list",
    "locations.studies.trials.addMeasurement": "trials.update",
    "locations.studies.trials.checkEarlyStoppingState": "trials.update",
    "locations.studies.trials.complete": "trials.update",
    "locations.studies.trials.stop": "trials.update",
}
# Beside the API: verb, path, and the permission on the project, or on the server where it tells of all.
BESIDE = {
    ("GET", "/why/projects/p/models/m"): "models.get",
    ("GET", "/why/projects/p/models/m/versions/v"): "versions.get",
    ("GET", "/history/projects/p/models/m/versions/v"): "versions.get",
    ("GET", "/waits/projects/p/models/m/versions/v"): "versions.get",
    ("GET", "/logs/projects/p/models/m/versions/v"): "logging.logEntries.list",
    ("GET", "/acceleration/projects/p/models/m/versions/v"): "versions.get",
    ("GET", "/jobs/projects/p/jobs/j"): "jobs.get",
    ("GET", "/jobs/projects/p/jobs/j/models"): "jobs.get",
    ("GET", "/jobs/projects/p/jobs/j/importance"): "jobs.get",
    ("GET", "/v1/projects/p/models/m:schema"): "models.get",
    ("GET", "/v1/projects/p/models/m/versions/v:schema"): "versions.get",
    ("POST", "/v1/projects/p:getIamPolicy"): "the owner's and the editor's",
    ("POST", "/v1/projects/p:setIamPolicy"): "the owner's",
}
OF_THE_SERVER = {
    ("GET", "/stats"): "models.list",
    ("GET", "/metrics"): "models.list",
    ("GET", "/monitoring/prometheus/metrics"): "models.list",
    ("GET", "/nodes"): "models.list",
    ("GET", "/servers"): "models.list",
    ("POST", "/v1/server:getIamPolicy"): "the owner's and the editor's",
    ("POST", "/v1/server:setIamPolicy"): "the owner's",
}
# Methods of other protocols, which are sent to the project p by setting, or name it.
OTHERS = {
    **{
        ("POST", f"/v1/models/m{version}:{verb}"): "models.predict"
        for verb in ("predict", "classify", "regress")
        for version in ("", "/versions/3", "/labels/canary")
    },
    **{
        ("GET", f"/v1/models/m{version}{suffix}"): "models.get"
        for suffix in ("", "/metadata")
        for version in ("", "/versions/3", "/labels/canary")
    },
    **{
        (verb, f"/v2/models/{model}{version}{suffix}"): permission
        for verb, suffix, permission in (
            ("POST", "/infer", "models.predict"),
            ("GET", "/ready", "models.get"),
            ("GET", "", "models.get"),
            ("GET", "/stats", "models.get"),
            ("GET", "/config", "models.get"),
        )
        for model in ("m", "projects/p/models/m", "projects%2Fp%2Fmodels%2Fm")
        for version in ("", "/versions/3")
    },
    ("GET", "/v2/models/stats"): "models.list",
    ("POST", "/v2/repository/index"): "models.list",
    ("POST", "/v2/repository/models/m/load"): "models.update",
    ("POST", "/v2/repository/models/m/unload"): "models.update",
}
OPEN = {
    ("GET", "/"),
    ("GET", "/v2"),
    ("GET", "/v2/health/live"),
    ("GET", "/v2/health/ready"),
    ("GET", "/healthz"),
    ("GET", "/openapi.json"),
    ("GET", "/docs"),
    ("GET", "/$discovery/rest"),
    ("GET", "/discovery/v1/apis"),
    ("GET", "/discovery/v1/apis/ml/v1/rest"),
    # What these take depends on what they are sent; `test_google_clients` has that.
    ("POST", "/batch"),
    ("POST", "/batch/ml/v1"),
    ("POST", "/v2/entries:list"),
    ("GET", "/readyz"),
    ("POST", "/v1/projects/p:testIamPermissions"),
    ("POST", "/v1/server:testIamPermissions"),
    ("POST", "/v1/projects/p/models/m:testIamPermissions"),
    ("POST", "/v1/projects/p/jobs/j:testIamPermissions"),
}
# They have no end, and take a token; `api/test_events.py` has who sees what of them.
STREAMS = {("GET", "/events")}
NO_ROLE, NO_TOKEN = "no role", "no token"


def permission_of(method: str) -> str:
    """The permission of a method of the discovery document, without `ml.`."""
    method = method.removeprefix("ml.projects.")
    return SPECIAL.get(method) or ".".join(method.split(".")[-2:])


def path_of(path: str) -> str:
    """A path of the document with names of what is not there."""
    if path.endswith((":predict", ":explain")):
        path = path.replace("{projectsId}", "p/models/m")
    ids = {"projects": "p", "models": "m", "versions": "v", "jobs": "j"}
    return re.sub(r"\{(\w+)Id\}", lambda match: ids.get(match[1], "x"), path)


API = {
    (verb, path_of(path)): permission_of(method)
    for method, (verb, path) in DISCOVERED.items()
    if not method.endswith("testIamPermissions")
}


def may(role: str, permission: str) -> bool:
    """What the contract says."""
    if permission.startswith("the owner's"):
        return role == "owner" or (role == "editor" and "editor" in permission)
    if role.startswith("ml."):
        return role.removeprefix("ml.") in HOLDERS[permission]
    if role == "viewer":
        return not {V, "basic viewer"}.isdisjoint(HOLDERS[permission])
    return role in {"owner", "editor"} and A in HOLDERS[permission]


def told(status: int) -> str:
    """What an answer says about the caller. What is asked for is not there, so that nothing happens."""
    return {401: "who?", 403: "no"}.get(status, "yes")


def test_every_method_and_every_role(tmp_path: Path) -> None:
    """On the project; what tells of the whole server takes the role on the server."""

    async def main(api: Api) -> None:
        for resource in ("projects/p", "server"):
            members = {role.replace(".", "_"): f"user:{role}@{resource[:6]}.example" for role in ROLES}
            await api.bind(resource, **members)
        wrong, statuses = [], Counter[int]()
        for role in (*ROLES, NO_ROLE, NO_TOKEN):
            for (verb, path), permission in {
                **API,
                **BESIDE,
                **OTHERS,
                **OF_THE_SERVER,
                **dict.fromkeys(OPEN, ""),
            }.items():
                of_server = (verb, path) in OF_THE_SERVER
                for where in ("projec", "server"):
                    caller = {NO_ROLE: "user:nobody@x.example", NO_TOKEN: ""}.get(
                        role, f"user:{role}@{where}.example"
                    )
                    answer = await api.send(caller, verb, path, {} if verb != "GET" else None)
                    wanted = "yes" if not permission else "who?" if role == NO_TOKEN else "no"
                    if role in ROLES and permission and (where == "server" or not of_server):
                        wanted = "yes" if may(role, permission) else "no"
                    statuses[answer.status_code] += 1
                    if told(answer.status_code) != wanted:
                        wrong.append((role, where, verb, path, answer.status_code, wanted))
        assert wrong == []
        assert not {500, 501, 405, 429} & statuses.keys(), statuses
        assert statuses[404] > 100  # who may call what is not offered is told so

    run(tmp_path, main)


def test_no_route_is_outside_the_matrix(tmp_path: Path) -> None:
    """Each route of the gateway is called by it."""
    gateway = Gateway(ServeConfig(state_dir=tmp_path), SqliteStore(tmp_path / "state.db"), {})
    called = {
        *API,
        *BESIDE,
        *OF_THE_SERVER,
        *OPEN,
        *STREAMS,
        *((verb, path.replace("%2F", "/")) for verb, path in OTHERS),
    }

    for route in gateway._build_api_routes():
        matching = [
            path for verb, path in called if verb in (route.methods or ()) and route.path_regex.match(path)
        ]
        assert matching, route.path
    assert len(called) == len(gateway._build_api_routes()) + sum(len(one.paths) for one in PREDICTION_METHODS)
