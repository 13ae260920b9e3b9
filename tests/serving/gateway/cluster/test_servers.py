"""Two gateways on one database: what they see of each other, and who does the work."""

from __future__ import annotations

import asyncio
import statistics
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa

from serving.gateway.control.work_owner import LeaseTiming
from serving.gateway.state.catalog_state import StateDraft
from serving.gateway.state.records import ChangeStamp
from serving.gateway.state.shared.change_listener import CHANNEL
from serving.gateway.state.shared.postgres_store import LeaseLost
from serving.names import ModelName, StudyName, VersionName
from serving.resources import JobState, VersionState
from tests.conftest import Report
from tests.postgres import Postgres
from tests.serving.gateway.catalog.study_world import CONFIG
from tests.serving.gateway.cluster.world import JOBS, MODELS, Member, find_owner, run, until, write_model

M = ModelName("p", "m")
V = VersionName("p", "m", "v")
STUDIES = "/v1/projects/p/locations/r/studies"
# Long enough for a busy machine.
QUICK = LeaseTiming(lasts=2.0, interval=0.2)


def count_up(draft: StateDraft, _: ChangeStamp) -> None:
    """Add one to the number that the model's description is."""
    record = draft.models[M]
    model = msgspec.structs.replace(record.model, description=str(int(record.model.description) + 1))
    draft.put(msgspec.structs.replace(record, model=model))


def test_each_sees_what_the_other_changes(postgres: Postgres, tmp_path: Path, report: Report) -> None:
    """Within 100 ms, and usually in a few."""

    async def main(a: Member, b: Member) -> None:
        took = []
        for number in range(30):
            writer, reader = (a, b) if number % 2 else (b, a)
            await writer.call("POST", MODELS, {"name": f"m{number}"})
            answered = time.perf_counter()
            await reader.until_known(f"m{number}")
            took.append(time.perf_counter() - answered)
        assert a.state == b.state == a.store.load()
        median, most = statistics.median(took) * 1000, max(took) * 1000
        report(f"a change on another server: {median:.1f} ms, at most {most:.1f} ms")
        assert statistics.median(took) < 0.1

    run(postgres.create_database(), tmp_path, main)


def test_no_update_is_lost(postgres: Postgres, tmp_path: Path, report: Report) -> None:
    """Of many on one record, on both at once."""

    async def main(a: Member, b: Member) -> None:
        await a.call("POST", MODELS, {"name": "m", "description": "0"})

        async def count(member: Member) -> None:
            for _ in range(25):
                await member.catalog.change(count_up)

        await b.catalog.refresh()
        begin = time.perf_counter()
        await asyncio.gather(*(count(member) for member in (a, b, a, b)))
        rate = 100 / (time.perf_counter() - begin)
        report(f"changes of one record from two servers: {rate:.0f}/s")

        await asyncio.gather(a.catalog.refresh(), b.catalog.refresh())
        for state in (a.state, b.state, a.store.load()):
            assert state.models[M].model.description == "100"

    run(postgres.create_database(), tmp_path, main)


def test_of_two_creations_one_is_refused(postgres: Postgres, tmp_path: Path) -> None:
    async def main(a: Member, b: Member) -> None:
        for number in range(5):
            created = await asyncio.gather(
                *(member.send("POST", MODELS, {"name": f"m{number}"}) for member in (a, b))
            )
            assert sorted(response.status_code for response in created) == [200, 409]

    run(postgres.create_database(), tmp_path, main)


def test_a_refusal_is_one_by_the_newest_state(postgres: Postgres, tmp_path: Path) -> None:
    """Also on a server that has not heard of it."""

    async def main(a: Member, b: Member) -> None:
        await b.stop_following()
        await a.call("POST", MODELS, {"name": "m"})
        assert M not in b.state.models
        await b.call("DELETE", f"{MODELS}/m")
        await a.call("POST", MODELS, {"name": "m"})

    run(postgres.create_database(), tmp_path, main)


def test_suggestions_of_one_moment_are_of_different_points(postgres: Postgres, tmp_path: Path) -> None:
    """Also on a server that has not heard of the trials of the other: it would choose the same."""

    async def suggest(member: Member) -> list[Any]:
        """Ask for a trial; the parameters of all."""
        asked = {"clientId": str(member.folder), "suggestionCount": 1}
        await member.call("POST", f"{STUDIES}/s/trials:suggest", asked)
        found = await member.call("GET", f"{STUDIES}/s/trials")
        return [trial["parameters"] for trial in found["trials"]]

    async def main(a: Member, b: Member) -> None:
        await a.call("POST", f"{STUDIES}?studyId=s", {"studyConfig": CONFIG})
        await until(lambda: StudyName("p", "r", "s") in b.state.studies)
        await b.stop_following()
        [known] = await suggest(a)
        assert not b.state.studies[StudyName("p", "r", "s")].trial_count
        first, second = await suggest(b)
        assert first == known != second

    run(postgres.create_database(), tmp_path, main)


def test_a_caller_sees_its_own_change_anywhere(postgres: Postgres, tmp_path: Path) -> None:
    """With the revision that the answer had."""

    async def main(a: Member, b: Member) -> None:
        await b.stop_following()
        created = await a.send("POST", MODELS, {"name": "m"})
        revision = created.headers["x-pilotlight-revision"]

        assert (await b.call("GET", MODELS)) == {}
        found = await b.send("GET", MODELS, x_pilotlight_revision=revision)
        assert (found.json()["models"], found.headers["x-pilotlight-revision"]) == (
            [created.json()],
            revision,
        )
        for odd in ("", "-1", "1e3", "9" * 30, str(int(revision) + 1000)):
            assert (await b.send("GET", f"{MODELS}/m", x_pilotlight_revision=odd)).status_code == 200

    run(postgres.create_database(), tmp_path, main)


def test_what_another_server_has_just_made_is_there(postgres: Postgres, tmp_path: Path) -> None:
    """Without the revision too, which Google's clients do not send: else they give up at a 404."""

    async def main(a: Member, b: Member) -> None:
        await b.stop_following()
        await a.call("POST", MODELS, {"name": "m"})
        assert (await b.call("GET", f"{MODELS}/m"))["name"] == "projects/p/models/m"
        study = await a.call("POST", f"{STUDIES}?studyId=s", {"studyConfig": CONFIG})
        operation = await b.call(
            "POST", f"/v1/{study['name']}/trials:suggest", {"suggestionCount": 1, "clientId": "c"}
        )
        await a.call("GET", f"/v1/{operation['name']}")
        [trial] = operation["response"]["trials"]
        await a.call(
            "POST", f"/v1/{trial['name']}:complete", {"trialInfeasible": True, "infeasibleReason": "x"}
        )

        await b.call("GET", f"{MODELS}/other", status=404)

    run(postgres.create_database(), tmp_path, main)


def test_a_status_says_of_which_server_it_is(postgres: Postgres, tmp_path: Path) -> None:
    """And who has the nodes of a version: the same on each."""
    model = write_model(tmp_path / "model")

    async def main(a: Member, b: Member) -> None:
        owner, _ = await find_owner((a, b))
        await owner.call("POST", MODELS, {"name": "m"})
        body = {"name": "v", "deploymentUri": str(model), "framework": "SCIKIT_LEARN"}
        await owner.call("POST", f"{MODELS}/m/versions", body)
        found = []
        for member in (a, b):
            await member.until_version(V, VersionState.READY)
            names: list[str] = []
            while len(names) < 2:
                await asyncio.sleep(0.01)
                names = [one["name"] for one in (await member.call("GET", "/servers"))["servers"]]
            why = await member.call("GET", f"/why/{V}")
            assert why["server"] == (await member.call("GET", "/nodes"))["server"]
            assert why["server"] in names
            assert set(why["owners"]) <= set(names)
            found.append(why["owners"])
        assert found[0] == found[1] != []

    run(postgres.create_database(), tmp_path, main)


def test_an_older_copy_of_the_database_is_taken_in(
    postgres: Postgres, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is put back while servers run, and as many changes follow."""

    async def main(a: Member, b: Member) -> None:
        await b.stop_following()
        await b.catalog.refresh()
        for name in ("kept", "lost"):
            await a.call("POST", MODELS, {"name": name})
        await b.catalog.refresh()
        revision = b.catalog.revision
        head, changes = "UPDATE catalog_head SET revision = revision - 1", "DELETE FROM catalog_changes"
        with a.store._engine.begin() as connection:
            connection.exec_driver_sql(f"{changes} WHERE revision = {revision}")
            connection.exec_driver_sql("DELETE FROM models WHERE name = 'projects/p/models/lost'")
            connection.exec_driver_sql(head)
        await a.catalog.refresh()
        await a.call("POST", MODELS, {"name": "new"})
        await b.catalog.refresh()

        assert b.catalog.revision >= revision
        assert {name.model for name in b.state.models} == {"kept", "new"}
        assert a.state == b.state == a.store.load()
        assert "an older copy of the database was put back" in caplog.text

    run(postgres.create_database(), tmp_path, main)


@pytest.mark.parametrize("payload", ["x", "0"])
def test_what_a_stranger_notifies_keeps_nobody_from_looking(
    postgres: Postgres, tmp_path: Path, payload: str
) -> None:
    """Each role that may connect to the database may do that, without other rights."""

    async def main(a: Member, b: Member) -> None:
        ended = threading.Event()

        def notify() -> None:
            with a.store._engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                while not ended.wait(0.02):
                    connection.execute(sa.select(sa.func.pg_notify(CHANNEL, payload)))

        notifying = asyncio.create_task(asyncio.to_thread(notify))
        try:
            await a.call("POST", MODELS, {"name": "m"})
            await b.until_known("m")
            known = b.catalog.revision
            with a.store._engine.begin() as connection:  # a commit of which nobody is told
                connection.exec_driver_sql("UPDATE catalog_head SET revision = revision + 1")
            await until(lambda: b.catalog.revision > known)
        finally:
            ended.set()
            await notifying
        assert b.gateway._supervisor.errors["changes"] == 0

    run(postgres.create_database(), tmp_path, main, peer_port="off")


def test_a_version_lives_and_dies_on_both(postgres: Postgres, tmp_path: Path) -> None:
    """Whichever was asked to make and to delete it, one does it."""
    model = write_model(tmp_path / "model")

    async def main(a: Member, b: Member) -> None:
        owner, other = await find_owner((a, b))
        await other.call("POST", MODELS, {"name": "m"})
        body = {"name": "v", "deploymentUri": str(model), "framework": "SCIKIT_LEARN"}
        await other.call("POST", f"{MODELS}/m/versions", body)
        for member in (a, b):
            await member.until_version(V, VersionState.READY)
            answer = await member.call("POST", f"/v1/{V}:predict", {"instances": [[1.0]]})
            assert answer == {"predictions": [3.0]}
        uid = a.state.versions[V].uid
        assert [(member.folder / "versions" / uid).exists() for member in (owner, other)] == [True, False]

        await other.call("DELETE", f"/v1/{V}")
        for member in (a, b):
            await member.until_version(V, None)
            await member.until_asleep(uid)
        await until(lambda: not (owner.folder / "versions" / uid).exists())

    run(postgres.create_database(), tmp_path, main)


def test_a_job_is_run_once_and_goes_on_elsewhere(postgres: Postgres, tmp_path: Path) -> None:
    """It was submitted to the server that does not run it; the one that does is stopped."""
    out = tmp_path / "out"

    async def main(a: Member, b: Member) -> None:
        owner, other = await find_owner((a, b))
        await other.submit("j", out, "run", "wait/go")
        await until((out / "started.1").exists)
        await until(lambda: other.state.jobs["projects/p/jobs/j"].job.state is JobState.RUNNING)

        await owner.stop()
        await until((out / "started.2").exists)
        (out / "go").touch()
        await until(lambda: other.state.jobs["projects/p/jobs/j"].has_ended)
        assert (await other.call("GET", f"{JOBS}/j"))["state"] == "SUCCEEDED"
        assert len(list(out.glob("request.*"))) == 2
        assert not (out / "overlap").exists()

    run(postgres.create_database(), tmp_path, main)


def test_a_job_is_cancelled_through_any_server(postgres: Postgres, tmp_path: Path) -> None:
    out = tmp_path / "out"

    async def main(a: Member, b: Member) -> None:
        _, other = await find_owner((a, b))
        await other.submit("j", out, "run", "wait/go")
        await until((out / "started.1").exists)
        await other.call("POST", f"{JOBS}/j:cancel")
        await until(lambda: other.state.jobs["projects/p/jobs/j"].has_ended)
        assert (await other.call("GET", f"{JOBS}/j"))["state"] == "CANCELLED"

    run(postgres.create_database(), tmp_path, main)


def test_work_of_a_frozen_server_changes_nothing_more(postgres: Postgres, tmp_path: Path) -> None:
    """Another server has taken it over; calls of the API are no work."""

    async def main(a: Member, b: Member) -> None:
        owner, other = await find_owner((a, b))
        await owner.call("POST", MODELS, {"name": "m", "description": "0"})
        await owner.stop_renewing()
        begin = time.monotonic()
        await until(lambda: other.catalog.owns_work)
        assert time.monotonic() - begin < 10

        async def work() -> None:
            owner.catalog.set_work_fence()
            await owner.catalog.change(count_up)

        assert owner.catalog.owns_work  # as far as it knows
        with pytest.raises(LeaseLost, match="Another server has taken over"):
            await asyncio.create_task(work())
        await owner.catalog.change(count_up)
        assert owner.store.load().models[M].model.description == "1"

        await owner.sharing._owner.renew()
        assert not owner.catalog.owns_work

    run(postgres.create_database(), tmp_path, main, QUICK)


def test_without_the_database_predictions_go_on(postgres: Postgres, tmp_path: Path) -> None:
    """Changes are refused, and all goes on by itself when it is back."""
    model = write_model(tmp_path / "model")

    async def main(a: Member, b: Member) -> None:
        await a.call("POST", MODELS, {"name": "m"})
        body = {"name": "v", "deploymentUri": str(model), "framework": "SCIKIT_LEARN"}
        await a.call("POST", f"{MODELS}/m/versions", body)
        await b.until_version(V, VersionState.READY)

        postgres.stop()
        for member in (a, b):  # nodes start, too
            answer = await member.call("POST", f"/v1/{V}:predict", {"instances": [[1.0]]})
            assert answer == {"predictions": [3.0]}
            assert (await member.call("GET", f"/v1/{V}"))["state"] == "READY"
            await member.call("GET", "/readyz")
            refused = await member.send("POST", MODELS, {"name": "n"})
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
            assert "cannot be used now" in refused.json()["error"]["message"]
            newer = await member.send("GET", f"/v1/{V}", x_pilotlight_revision="999999")
            assert newer.status_code == 503
        await until(lambda: not any(member.catalog.owns_work for member in (a, b)))

        postgres.start()
        await a.call("POST", MODELS, {"name": "n"})
        await b.until_known("n")
        await find_owner((a, b))

    try:
        run(postgres.create_database(), tmp_path, main, QUICK)
    finally:
        if postgres.process is None:
            postgres.start()


def test_a_database_that_stands_still_is_as_one_that_is_away(postgres: Postgres, tmp_path: Path) -> None:
    """Its kernel takes what is sent to it, so that only the silence tells."""
    model = write_model(tmp_path / "model")

    async def main(a: Member, b: Member) -> None:
        await a.call("POST", MODELS, {"name": "m"})
        body = {"name": "v", "deploymentUri": str(model), "framework": "SCIKIT_LEARN"}
        await a.call("POST", f"{MODELS}/m/versions", body)
        await b.until_version(V, VersionState.READY)

        with postgres.frozen():
            refusals = [asyncio.ensure_future(one.send("POST", MODELS, {"name": "n"})) for one in (a, b)]
            for member in (a, b):  # nodes start, too
                answer = await member.call("POST", f"/v1/{V}:predict", {"instances": [[1.0]]})
                assert answer == {"predictions": [3.0]}
            for refused in await asyncio.gather(*refusals):
                assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
                assert "cannot be used now" in refused.json()["error"]["message"]
            # Each round of the loops ends, too.
            for member in (a, b):
                for name in ("servers", "changes", "lease"):
                    await member.until_round_ends(name)

        await a.call("POST", MODELS, {"name": "o"})
        await b.until_known("o")
        await find_owner((a, b))

    run(f"{postgres.create_database()}&connect_timeout=2", tmp_path, main, QUICK)
