"""Every page and every change of the console with every role: what the matrix of the API says."""

from __future__ import annotations

import os
import re
from pathlib import Path

from serving.gateway.access.policy import ADMIN
from serving.gateway.console.app import PAGES
from serving.gateway.console.rendering import ROOT
from tests.many_versions import deploy
from tests.serving.gateway.access.test_matrix import NO_ROLE, NO_TOKEN, ROLES, may
from tests.serving.gateway.console.world import Browser, World, run
from tests.serving.gateway.job_world import FAKE

# The permission of each page, "" for pages that show only what the visitor may see.
PERMISSIONS = {
    ("GET", "/"): "",
    ("GET", "/versions"): "",
    ("GET", "/projects/{project}/models/{model}"): "models.get",
    ("GET", "/projects/{project}/models/{model}/version-list"): "models.get",
    ("POST", "/projects/{project}/models/{model}/default"): "models.update",
    ("POST", "/projects/{project}/models/{model}/settings"): "models.update",
    ("POST", "/projects/{project}/models/{model}/deletion"): "models.delete",
    ("GET", "/projects/{project}/models/{model}/versions/{version}"): "versions.get",
    ("GET", "/projects/{project}/models/{model}/versions/{version}/state"): "versions.get",
    ("GET", "/projects/{project}/models/{model}/versions/{version}/history"): "versions.get",
    ("GET", "/projects/{project}/models/{model}/versions/{version}/phases"): "versions.get",
    ("GET", "/projects/{project}/models/{model}/versions/{version}/waits"): "versions.get",
    ("GET", "/projects/{project}/models/{model}/versions/{version}/acceleration"): "versions.get",
    ("GET", "/projects/{project}/models/{model}/versions/{version}/log"): "logging.logEntries.list",
    ("POST", "/projects/{project}/models/{model}/versions/{version}/predictions"): "models.predict",
    ("POST", "/projects/{project}/models/{model}/versions/{version}/default"): "models.update",
    ("POST", "/projects/{project}/models/{model}/versions/{version}/settings"): "versions.update",
    ("POST", "/projects/{project}/models/{model}/versions/{version}/deletion"): "versions.delete",
    ("GET", "/projects/{project}/jobs"): "jobs.list",
    ("GET", "/projects/{project}/job-list"): "jobs.list",
    ("GET", "/projects/{project}/jobs/{job}"): "jobs.get",
    ("GET", "/projects/{project}/jobs/{job}/progress"): "jobs.get",
    ("GET", "/projects/{project}/jobs/{job}/log"): "jobs.get",
    ("GET", "/projects/{project}/jobs/{job}/trials"): "jobs.get",
    ("GET", "/projects/{project}/jobs/{job}/trial-table"): "jobs.get",
    ("GET", "/projects/{project}/jobs/{job}/importance"): "jobs.get",
    ("GET", "/projects/{project}/jobs/{job}/models"): "jobs.get",
    ("POST", "/projects/{project}/jobs/{job}/cancel"): "jobs.cancel",
    ("POST", "/projects/{project}/jobs/{job}/labels"): "jobs.update",
    ("GET", "/projects/{project}/new-prediction-job"): "jobs.create",
    ("POST", "/projects/{project}/new-prediction-job"): "jobs.create",
    ("GET", "/projects/{project}/new-training-job"): "jobs.create",
    ("POST", "/projects/{project}/new-training-job"): "jobs.create",
    ("GET", "/projects/{project}/jobs/{job}/curves"): "jobs.get",
    ("GET", "/projects/{project}/deploy"): "models.create",
    ("POST", "/projects/{project}/deploy"): "versions.create",
    ("GET", "/projects/{project}/operations"): "operations.list",
    ("GET", "/projects/{project}/operations/{operation}"): "operations.get",
    ("GET", "/projects/{project}/operations/{operation}/progress"): "operations.get",
    ("POST", "/projects/{project}/operations/{operation}/cancel"): "operations.cancel",
    ("GET", "/projects/{project}/access"): "the owner's and the editor's",
    ("POST", "/projects/{project}/access/members"): "the owner's",
    ("GET", "/audit"): "the owner's and the editor's",
    ("GET", "/write-trouble"): "",
}
# Those that tell of the whole server: the role must be one on it.
OF_THE_SERVER = {
    ("GET", "/resources"): "models.list",
    ("GET", "/doctor"): "the owner's and the editor's",
    ("GET", "/doctor/results"): "the owner's and the editor's",
    ("GET", "/doctor/server"): "the owner's and the editor's",
    ("GET", "/settings"): "the owner's and the editor's",
    ("POST", "/projects/{project}/access/tokens"): "the owner's",
    ("POST", "/projects/{project}/access/tokens/{token}/revocation"): "the owner's",
}
# They begin something where they are allowed, and are tried with roles that are not.
BEGINNING = {("POST", "/doctor"): "the owner's and the editor's"}
# Pages that every page leads to, by the permission that offers them.
OFFERED = {
    "/projects/p/jobs": "jobs.list",
    "/projects/p/deploy": "models.create",
    "/projects/p/operations": "operations.list",
    "/projects/p/access": "the owner's and the editor's",
    "/audit": "the owner's and the editor's",
}
OFFERED_OF_THE_SERVER = {
    "/doctor": "the owner's and the editor's",
    "/settings": "the owner's and the editor's",
}
FORM = re.compile(r'<form[^>]* method="post" action="([^"#]+)')
# Of each page the permission to see it, and its forms with what they need.
FORMS = {
    "/projects/p/models/m000/versions/v1": (
        "versions.get",
        {
            "predictions": "models.predict",
            "default": "models.update",
            "settings": "versions.update",
            "deletion": "versions.delete",
        },
    ),
    "/projects/p/models/m000": (
        "models.get",
        {"default": "models.update", "settings": "models.update"},
    ),
    "/projects/p/jobs/j": ("jobs.get", {"cancel": "jobs.cancel", "labels": "jobs.update"}),
    "/projects/p/deploy": ("models.create", {"deploy": "models.create"}),
    "/projects/p/new-prediction-job": ("jobs.create", {"new-prediction-job": "jobs.create"}),
    "/projects/p/new-training-job": ("jobs.create", {"new-training-job": "jobs.create"}),
    "/projects/p/access": ("the owner's and the editor's", {"members": "the owner's"}),
}
FIELDS = {"model": "m", "version": "v", "folder": "gs://b/m", "target": "m", "step": "check"}


def test_no_page_is_outside_the_table() -> None:
    assert {(route.verb, route.path) for module in PAGES for route in module.ROUTES} == {
        *PERMISSIONS,
        *OF_THE_SERVER,
        *BEGINNING,
    }


async def ask(browser: Browser, verb: str, path: str) -> str:
    """What an answer says about the visitor. What is asked for is not there, so that nothing happens."""
    address = ROOT + path.format(project="p", model="m", version="v", job="j", operation="o", token="t")
    if verb == "GET":
        response = await browser.client.get(address)
    else:
        response = await browser.client.post(address, data={"anti_forgery_token": browser._token, **FIELDS})
    assert response.status_code < 500, (verb, path, response.text)
    if response.url.path == f"{ROOT}/sign-in" or response.status_code == 401:
        return "who?"
    return "no" if response.status_code == 403 else "yes"


def test_every_page_and_every_role(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        for resource in ("projects/p", "server"):
            members = {role.replace(".", "_"): f"user:{role}@{resource[:6]}.example" for role in ROLES}
            await world.api.bind(resource, **members)
        wrong = []
        callers = {
            f"user:{role}@{where}.example": role for role in ROLES for where in ("projec", "server")
        } | {"user:nobody@x.example": NO_ROLE, "": NO_TOKEN}
        for caller, role in callers.items():
            is_of_server = caller.endswith("@server.example")

            def expects(permission: str, *, server: bool, role: str = role, of: bool = is_of_server) -> bool:
                return not permission or (role in ROLES and may(role, permission) and (of or not server))

            async with world.browser() as browser:
                overview = await browser.open("/sign-in")
                if caller:
                    overview = await browser.sign_in(await world.api.token(caller))
                for (verb, path), permission in {**PERMISSIONS, **OF_THE_SERVER, **BEGINNING}.items():
                    is_allowed = expects(permission, server=(verb, path) not in PERMISSIONS)
                    if is_allowed and (verb, path) in BEGINNING:
                        continue
                    wanted = ("yes" if is_allowed else "no") if caller else "who?"
                    if (said := await ask(browser, verb, path)) != wanted:
                        wrong.append((caller, verb, path, said, wanted))
                for path, permission in {**OFFERED, **OFFERED_OF_THE_SERVER}.items() if caller else ():
                    is_offered = f'href="{ROOT}{path}"' in overview
                    if is_offered != expects(permission, server=path in OFFERED_OF_THE_SERVER):
                        wrong.append((caller, "offered", path, str(is_offered), ""))
        assert wrong == []

    run(tmp_path, main, access="on")


def test_pages_offer_each_role_what_it_may_do_and_nothing_else(tmp_path: Path) -> None:
    """The forms of pages about a version and a job that are there."""

    async def main(world: World) -> None:
        job = {
            "jobId": "j",
            "predictionInput": {
                "uri": "/model",
                "inputPaths": ["/wait/go"],
                "outputPath": str(tmp_path / "out"),
                "dataFormat": "JSON",
                "region": "us-central1",
            },
        }
        await world.api.call(ADMIN.principal, "POST", "/v1/projects/p/jobs", job)
        members = {role.replace(".", "_"): f"user:{role}@x.example" for role in ROLES}
        await world.api.bind("projects/p", **members)
        wrong = []
        for role in ROLES:
            async with world.browser() as browser:
                await browser.sign_in(await world.api.token(f"user:{role}@x.example"))
                for path, (permission, forms) in FORMS.items():
                    wanted = {name for name, needed in forms.items() if may(role, needed)}
                    page = await browser.client.get(f"{ROOT}{path}")
                    offered = {action.rpartition("/")[2] for action in FORM.findall(page.text)} - {"sign-out"}
                    if offered != (wanted if may(role, permission) else set()):
                        wrong.append((role, path, offered))
        assert wrong == []

    (tmp_path / "out").mkdir()
    deploy(tmp_path / "state", 1)
    run(tmp_path / "state", main, access="on", environment=dict(os.environ), job_command=FAKE)
