"""Tokens, policies and what follows from them, on the whole gateway."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path

import orjson
import pytest

from serving.config import ServeConfig
from serving.errors import InvalidArgument
from serving.gateway.access.bootstrap import is_access_control_on, open_token_store
from serving.gateway.access.policy import ADMIN
from serving.gateway.access.tokens import has_token_format, parse_lifetime
from serving.gateway.state.records import ModelRecord, VersionRecord
from serving.gateway.state.store import SqliteStore
from serving.names import VersionName
from serving.resources import Model, RequestLoggingConfig, Version, VersionState
from tests.bounds import HANG_SECONDS
from tests.serving.gateway.access.world import Api, run

PROJECT, MODELS, MODEL = "/v1/projects/p", "/v1/projects/p/models", "/v1/projects/p/models/m"
ANN, BOB = "user:ann@example.com", "serviceAccount:bob@example.com"
OWN = ADMIN.principal


# ---- tokens


@pytest.mark.parametrize(
    "header", ["Bearer nonsense", "Basic dXNlcjpwYXNz", "Bearer", "", f"Bearer plt_{'0' * 12}_{'0' * 64}"]
)
def test_what_is_no_good_token_is_refused_with_401(tmp_path: Path, header: str) -> None:
    """In Google's form, whatever it is, and also where none is needed."""

    async def main(api: Api) -> None:
        for path in (f"{MODEL}:predict", f"{MODEL}:testIamPermissions"):
            answer = await api.send("", "POST", path, {}, authorization=header)
            assert answer.status_code == 401
            assert answer.json()["error"]["status"] == "UNAUTHENTICATED"
            assert answer.headers["www-authenticate"].startswith("Bearer")
        assert (await api.send("", "GET", "/healthz", authorization=header)).status_code == 200

    run(tmp_path, main)


def test_expired_revoked_and_unknown_are_told_apart_in_the_log_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The client is told the same; no token is in the log."""

    async def main(api: Api) -> None:
        assert api.gateway._access is not None
        expired, revoked = await api.token(ANN, seconds=-1), await api.token(ANN)
        api.tokens.revoke(revoked.split("_")[1], time.time())
        await api.gateway._access.refresh_tokens()
        told = set()
        for token in (expired, revoked, f"plt_{'0' * 12}_{'0' * 64}"):
            api.gateway._access._log_muted_until = 0.0
            answer = await api.send("", "GET", MODELS, authorization=f"bearer {token}")
            told.add((answer.status_code, answer.json()["error"]["message"]))
            assert token not in caplog.text
        assert len(told) == 1
        for reason in ("expired", "revoked", "unknown"):
            assert reason in caplog.text

    with caplog.at_level(logging.WARNING):
        run(tmp_path, main)


def test_a_running_server_notices_a_token_and_its_end(tmp_path: Path) -> None:
    """By itself; nobody tells it."""

    async def main(api: Api) -> None:
        token = await api.token(OWN)
        assert (await api.send("", "GET", MODELS, authorization=f"Bearer {token}")).status_code == 200
        api.tokens.revoke(token.split("_")[1], time.time())

        async with asyncio.timeout(HANG_SECONDS):
            while (await api.send("", "GET", MODELS, authorization=f"Bearer {token}")).status_code != 401:  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    run(tmp_path, main)


@pytest.mark.parametrize(("text", "seconds"), [("30d", 2592000), ("12h", 43200), ("90m", 5400), ("1s", 1)])
def test_durations(text: str, seconds: float) -> None:
    """A number and its unit."""
    assert parse_lifetime(text) == seconds


@pytest.mark.parametrize("text", ["", "30", "d", "-1d", "0d", "1w", "1.5h", "9999999d"])
def test_other_durations_are_refused(text: str) -> None:
    """Naming the form."""
    with pytest.raises(InvalidArgument, match="expected a number with its unit"):
        parse_lifetime(text)


# ---- the start


@pytest.mark.parametrize(
    ("host", "access", "on"),
    [
        ("127.0.0.1", "auto", False), ("::1", "auto", False), ("localhost", "auto", False),
        ("0.0.0.0", "auto", True), ("10.0.0.1", "auto", True), ("example.com", "auto", True),
        ("127.0.0.1", "on", True), ("127.0.0.1", "off", False), ("0.0.0.0", "on", True),
    ],
)  # fmt: skip
def test_access_control_is_off_on_loopback_alone(host: str, access: str, on: bool) -> None:
    """Unless a setting says otherwise."""
    assert is_access_control_on(ServeConfig(host=host, access=access)) is on


def test_off_elsewhere_has_to_be_said_twice(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """And the start warns of it."""
    with pytest.raises(InvalidArgument, match="--insecure"):
        is_access_control_on(ServeConfig(host="0.0.0.0", access="off"))

    config = ServeConfig(host="0.0.0.0", access="off", insecure=True, state_dir=tmp_path)
    assert open_token_store(config) is None
    assert "ACCESS CONTROL IS OFF" in caplog.text


def test_the_first_start_makes_a_token_for_its_owner_alone(tmp_path: Path) -> None:
    """And the next one none."""
    config = ServeConfig(access="on", state_dir=tmp_path)
    for _ in range(2):
        store = open_token_store(config)
        assert store is not None
        (record,) = store.load()
        store.close()

    file = tmp_path / "admin-token"
    assert record.principal == OWN
    assert has_token_format(file.read_bytes().strip())
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.read_bytes().strip() not in (tmp_path / "state.db").read_bytes()


# ---- policies


def test_a_denial_names_the_permission_and_the_resource(tmp_path: Path) -> None:
    """In Google's words, the same for what is there and what is not."""

    async def main(api: Api) -> None:
        answer = await api.call(ANN, "POST", MODELS, {"name": "m"}, 403)
        assert answer["error"] == {
            "code": 403,
            "status": "PERMISSION_DENIED",
            "message": "Permission 'ml.models.create' denied on resource 'projects/p' (or it may not exist).",
        }
        predicted = await api.call(ANN, "POST", f"{MODEL}/versions/v:predict", {}, 403)
        assert "'ml.versions.predict' denied on resource 'projects/p/models/m/versions/v'" in str(predicted)

    run(tmp_path, main)


def test_whoever_makes_a_model_owns_it_and_its_operations(tmp_path: Path) -> None:
    """A developer may not delete models, but those of their own; a new one of the name is not theirs."""

    async def main(api: Api) -> None:
        await api.bind("projects/p", ml_developer=ANN, ml_modelOwner=BOB)
        await api.call(ANN, "POST", MODELS, {"name": "m"})
        await api.call(BOB, "POST", MODELS, {"name": "other"})
        await api.call(ANN, "DELETE", f"{MODELS}/other", status=403)
        operation = await api.call(ANN, "DELETE", MODEL)
        await api.call(ANN, "POST", f"/v1/{operation['name']}:cancel", {})

        await api.call(OWN, "POST", MODELS, {"name": "m"})
        await api.call(ANN, "DELETE", MODEL, status=403)

    run(tmp_path, main)


def test_policies_survive_a_restart(tmp_path: Path) -> None:
    """They are state."""

    async def first(api: Api) -> None:
        await api.bind("projects/p", viewer=ANN)

    async def second(api: Api) -> None:
        await api.call(ANN, "GET", MODELS)

    run(tmp_path, first)
    run(tmp_path, second)


def test_of_two_changes_from_one_etag_one_is_lost_to_nobody(tmp_path: Path) -> None:
    """The second is told to read again."""

    async def main(api: Api) -> None:
        path = f"{PROJECT}:setIamPolicy"
        before = await api.call(OWN, "POST", f"{PROJECT}:getIamPolicy", {})
        assert before == {"etag": "ACAB"}
        policy = {"etag": before["etag"], "bindings": [{"role": "roles/viewer", "members": [ANN]}]}
        with_ann = await api.call(OWN, "POST", path, {"policy": {**policy, "bindings": []}})
        lost = await api.call(OWN, "POST", path, {"policy": policy}, 409)
        assert lost["error"]["status"] == "ABORTED"
        assert await api.call(OWN, "POST", f"{PROJECT}:getIamPolicy", {}) == with_ann
        kept = with_ann["etag"]
        for _ in range(20):  # a third of all etags are other texts in the alphabet of URLs
            etag = kept.replace("+", "-").replace("/", "_")
            kept = (await api.call(OWN, "POST", path, {"policy": {**policy, "etag": etag}}))["etag"]

    run(tmp_path, main)


@pytest.mark.parametrize(
    ("binding", "field"),
    [
        ({"role": "roles/none", "members": [ANN]}, "role"),
        ({"role": "roles/viewer", "members": ["group:all@example.com"]}, "members"),
        ({"role": "roles/viewer", "members": ["ann"]}, "members"),
        ({"role": "roles/owner", "members": ["allUsers"]}, "members"),
        ({"role": "roles/viewer", "members": [ANN], "condition": {"expression": "true"}}, "condition"),
    ],
)
def test_what_a_policy_cannot_say_is_refused(tmp_path: Path, binding: object, field: str) -> None:
    """Naming the field, and nothing changes."""

    async def main(api: Api) -> None:
        sent = {"policy": {"bindings": [binding]}}
        answer = await api.call(OWN, "POST", f"{PROJECT}:setIamPolicy", sent, 400)
        (violation,) = answer["error"]["details"][0]["fieldViolations"]
        assert violation["field"] == f"policy.bindings[0].{field}"
        assert await api.call(OWN, "POST", f"{PROJECT}:getIamPolicy", {}) == {"etag": "ACAB"}

    run(tmp_path, main)


def test_everybody_may_do_what_all_users_may(tmp_path: Path) -> None:
    """Without a token too, from the moment of the change to that of the next."""

    async def main(api: Api) -> None:
        await api.call(OWN, "POST", MODELS, {"name": "m"})
        await api.call("", "GET", MODEL, status=401)
        await api.call("", "POST", f"{MODEL}:predict", {}, 401)
        await api.bind("projects/p/models/m", ml_modelUser="allUsers")
        await api.call("", "GET", MODEL)
        await api.call("", "POST", f"{MODEL}:predict", {}, 400)  # it has no version
        await api.call("", "GET", MODELS, status=401)
        await api.bind("projects/p/models/m", ml_modelUser="allAuthenticatedUsers")
        await api.call("", "POST", f"{MODEL}:predict", {}, 401)
        await api.call(BOB, "POST", f"{MODEL}:predict", {}, 400)

    run(tmp_path, main)


def test_permissions_are_tested(tmp_path: Path) -> None:
    """The subset that is held; nothing of what is not there; permissions that there are not are refused."""

    async def main(api: Api) -> None:
        await api.bind("projects/p", viewer=ANN)
        await api.call(OWN, "POST", MODELS, {"name": "m"})
        asked = {"permissions": ["ml.models.delete", "ml.models.predict", "ml.models.get"]}
        path = f"{MODEL}:testIamPermissions"
        held = await api.call(ANN, "POST", path, asked)
        assert held == {"permissions": ["ml.models.predict", "ml.models.get"]}
        assert await api.call(OWN, "POST", path, asked) == asked
        assert await api.call("", "POST", path, asked) == {}
        assert await api.call(OWN, "POST", f"{MODELS}/no:testIamPermissions", asked) == {}
        await api.call(ANN, "POST", path, {"permissions": ["ml.models.fly"]}, 400)

    run(tmp_path, main)


def test_a_job_with_the_model_of_another_project_takes_a_role_there(tmp_path: Path) -> None:
    """A role on one project says nothing of another."""

    async def main(api: Api) -> None:
        await api.bind("projects/p", ml_developer=ANN)
        given = {"modelName": "projects/q/models/m"}
        answer = await api.call(ANN, "POST", f"{PROJECT}/jobs", {"jobId": "j", "predictionInput": given}, 403)
        assert "'ml.models.predict' denied on resource 'projects/q/models/m'" in answer["error"]["message"]

    run(tmp_path, main)


# ---- logs


def test_who_reads_a_request_log_sees_the_own_project_alone(tmp_path: Path) -> None:
    """Though another one logs to the same folder under the same ids."""
    log = tmp_path / "log"
    (log / "dt=2030-01-01").mkdir(parents=True)
    with (log / "dt=2030-01-01" / "1.jsonl").open("wb") as file:
        for project in ("p", "q", None):
            entry = {"time": "2030-01-01T00:00:00.000000Z", "model": "m", "model_version": "v"}
            own = {} if project is None else {"project": project}
            file.write(orjson.dumps({**entry, **own}, option=orjson.OPT_APPEND_NEWLINE))

    (tmp_path / "state").mkdir()
    store = SqliteStore(tmp_path / "state" / "state.db")
    for project in ("p", "q"):
        name = VersionName(project, "m", "v")
        logging_config = RequestLoggingConfig(bigquery_table_name=str(log), sampling_percentage=1)
        version = Version(name=str(name), state=VersionState.READY, request_logging_config=logging_config)
        model = ModelRecord(name=name.parent, model=Model(name=str(name.parent)), default="v")
        record = VersionRecord(name=name, uid=project, version=version)
        store.commit({("models", str(name.parent)): model, ("versions", str(name)): record})
    store.close()

    async def main(api: Api) -> None:
        for project in ("p", "q"):
            found = await api.call(OWN, "GET", f"/logs/projects/{project}/models/m/versions/v")
            assert [entry["project"] for entry in found["entries"]] == [project]

    run(tmp_path / "state", main)
