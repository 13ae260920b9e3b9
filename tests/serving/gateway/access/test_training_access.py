"""Training jobs and every role: to submit, deploy, see and end one, and to read what it prints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.end_to_end.training_jobs import training_job, write_wheel
from tests.serving.gateway.access.test_matrix import NO_ROLE, ROLES, may
from tests.serving.gateway.access.world import Api, run

PARENT = "/v1/projects/p"
DEPLOY = {"trainingOptions": {"deploy": {"model": "m"}}}


def log_request(job_id: str, *projects: str) -> dict[str, Any]:
    names = [f"projects/{project}" for project in projects]
    condition = f'resource.type="ml_job" AND resource.labels.job_id="{job_id}"'
    return {"resourceNames": names, "filter": condition}


def caller_of(role: str) -> str:
    return "user:nobody@x.example" if role == NO_ROLE else f"user:{role}@p.example"


def test_every_role_and_a_training_job(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path / "wheel", "print('trained')")

    def body(job_id: str) -> dict[str, Any]:
        return training_job(job_id, wheel, jobDir=str(tmp_path / job_id))

    async def main(api: Api) -> None:
        admin = "user:owner@p.example"
        await api.bind("projects/p", **{role.replace(".", "_"): caller_of(role) for role in ROLES})
        await api.call(admin, "POST", f"{PARENT}/models", {"name": "m"})
        await api.call(admin, "POST", f"{PARENT}/jobs", body("known"))
        wrong = []
        for number, role in enumerate((*ROLES, NO_ROLE)):
            who, own = caller_of(role), f"own_{number}"
            requests: list[tuple[str, str, Any, tuple[str, ...]]] = [
                ("POST", f"{PARENT}/jobs", {**body(f"deployed_{number}"), **DEPLOY},
                 ("jobs.create", "versions.create")),
                ("POST", f"{PARENT}/jobs", body(own), ("jobs.create",)),
                ("GET", f"{PARENT}/jobs/known", None, ("jobs.get",)),
                ("GET", "/jobs/projects/p/jobs/known", None, ("jobs.get",)),
                ("GET", "/jobs/projects/p/jobs/known/models", None, ("jobs.get",)),
                ("POST", "/v2/entries:list", log_request("known", "p"), ("jobs.get",)),
                ("POST", f"{PARENT}/jobs/known:cancel", {}, ("jobs.cancel",)),
            ]  # fmt: skip
            for verb, path, sent, permissions in requests:
                answer = await api.send(who, verb, path, sent)
                wanted = role in ROLES and all(may(role, permission) for permission in permissions)
                if (answer.status_code != 403) != wanted:
                    wrong.append((role, verb, path, answer.status_code, wanted))
        assert wrong == []

    state = tmp_path / "state"
    state.mkdir()
    run(state, main)


def test_who_owns_a_model_may_have_a_job_deployed_there(tmp_path: Path) -> None:
    """A developer of jobs who owns one model: there, and on no other; and in no project but theirs."""
    wheel = write_wheel(tmp_path / "wheel", "print('trained')")

    async def main(api: Api) -> None:
        ann = "user:ann@x.example"
        await api.bind("projects/p", ml_developer=ann, owner="user:owner@p.example")
        await api.bind("projects/q", owner="user:owner@p.example")
        for project, model in (("p", "m"), ("p", "other"), ("q", "m")):
            await api.call("user:owner@p.example", "POST", f"/v1/projects/{project}/models", {"name": model})
        await api.bind("projects/p/models/m", ml_modelOwner=ann)
        job = training_job("mine", wheel, jobDir=str(tmp_path / "out"))

        def deployed(model: str) -> dict[str, Any]:
            return {**job, "trainingOptions": {"deploy": {"model": model}}}

        await api.call(ann, "POST", f"{PARENT}/jobs", deployed("other"), 403)
        await api.call(ann, "POST", "/v1/projects/q/jobs", deployed("m"), 403)
        await api.call(ann, "POST", f"{PARENT}/jobs", deployed("m"))
        # Who sent a job owns it, and reads what it prints; beside a project of others nothing is told.
        await api.call(ann, "POST", "/v2/entries:list", log_request("mine", "p"))
        await api.call(ann, "POST", "/v2/entries:list", log_request("mine", "p", "q"), 403)
        await api.call(ann, "POST", f"{PARENT}/jobs/mine:cancel", {})

    state = tmp_path / "state"
    state.mkdir()
    run(state, main)
