"""Studies as clients of AI Platform use them, against a real server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from googleapiclient.errors import HttpError

from tests.end_to_end.conftest import google_client
from tests.end_to_end.studies import CONFIG, LOCATION, create_study, measurement, read_point, suggest
from tests.server import Server, running_server

DEPTH = {"parameter": "depth", "type": "INTEGER", "integerValueSpec": {"minValue": "0", "maxValue": "1"}}
GRID = {"algorithm": "GRID_SEARCH", "parameters": [DEPTH]}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("studies") / "state") as server:
        yield server
        assert server.stop() == 0


@pytest.fixture(scope="module")
def ml(server: Server) -> Iterator[Any]:
    """Google's client, with the document that it packages."""
    with google_client(server) as client:
        yield client


def test_every_method_with_googles_client(ml: Any) -> None:
    """Studies, trials and operations, from their creation to their end."""
    studies = ml.projects().locations().studies()
    trials, operations = studies.trials(), ml.projects().locations().operations()
    name = f"{LOCATION}/studies/all"
    body = {"studyConfig": {**CONFIG, "automatedStoppingConfig": {"medianAutomatedStoppingConfig": {}}}}

    created = studies.create(parent=LOCATION, studyId="all", body=body).execute()
    assert created["name"] == name
    assert created["state"] == "ACTIVE"
    assert created["studyConfig"] == body["studyConfig"]
    assert studies.get(name=name).execute() == created
    assert created in studies.list(parent=LOCATION).execute()["studies"]

    parameters = [{"parameter": "x", "floatValue": 0}, {"parameter": "y", "floatValue": 2.5}]
    own = trials.create(parent=name, body={"parameters": parameters}).execute()
    assert own == {"name": f"{name}/trials/1", "state": "REQUESTED", "parameters": parameters}
    operation = trials.suggest(parent=name, body={"clientId": "me", "suggestionCount": 2}).execute()
    first, second = operation["response"]["trials"]
    assert operation["done"]
    assert operation["metadata"]["@type"].endswith("google.cloud.ml.v1.SuggestTrialsMetadata")
    assert operation["response"]["studyState"] == "ACTIVE"
    assert (first["name"], first["state"], first["clientId"]) == (own["name"], "ACTIVE", "me")
    assert first["parameters"] == parameters
    assert operations.get(name=operation["name"]).execute() == operation
    assert operations.cancel(name=operation["name"]).execute() == {}

    measured = trials.addMeasurement(name=first["name"], body={"measurement": measurement(0.5)}).execute()
    assert measured["measurements"] == [{**measurement(0.5), "elapsedTime": "0s"}]
    check = trials.checkEarlyStoppingState(name=first["name"], body={}).execute()
    assert check["done"]
    assert "shouldStop" not in check["response"]
    assert trials.stop(name=first["name"], body={}).execute()["state"] == "STOPPING"
    check = trials.checkEarlyStoppingState(name=first["name"]).execute()
    assert check["response"]["shouldStop"]
    ended = trials.complete(name=first["name"], body={}).execute()
    assert ended["state"] == "COMPLETED"
    assert ended["finalMeasurement"] == measured["measurements"][0]
    assert trials.get(name=first["name"]).execute() == ended
    assert trials.listOptimalTrials(parent=name, body={}).execute() == {"trials": [ended]}
    assert trials.list(parent=name).execute() == {"trials": [ended, second]}

    assert trials.delete(name=second["name"]).execute() == {}
    assert trials.list(parent=name).execute() == {"trials": [ended]}
    assert studies.delete(name=name).execute() == {}
    for gone in (studies.get(name=name), trials.list(parent=name), operations.get(name=operation["name"])):
        with pytest.raises(HttpError) as caught:
            gone.execute()
        assert caught.value.resp.status == 404


def test_googles_notebook(ml: Any) -> None:
    """Suggest, train, measure, complete; in the end the best is near the optimum of two objectives."""
    studies = ml.projects().locations().studies()
    parameters = [
        {
            "parameter": name,
            "type": "DOUBLE",
            "double_value_spec": {"min_value": low, "max_value": high},
            "scale_type": "UNIT_LINEAR_SCALE",
        }
        for name, low, high in (("r", 0, 1), ("theta", 0, 1.57))
    ]
    config = {
        "algorithm": "ALGORITHM_UNSPECIFIED",
        "parameters": parameters,
        "metrics": [{"metric": "y1", "goal": "MINIMIZE"}, {"metric": "y2", "goal": "MAXIMIZE"}],
    }
    name = studies.create(parent=LOCATION, studyId="me_study_20", body={"study_config": config}).execute()[
        "name"
    ]

    for _ in range(4):
        body = {"client_id": "client1", "suggestion_count": 5}
        suggested = studies.trials().suggest(parent=name, body=body).execute()
        operation = ml.projects().locations().operations().get(name=suggested["name"]).execute()
        for trial in operation["response"]["trials"]:
            point = read_point(trial)
            metrics = [{"metric": "y1", "value": point["r"]}, {"metric": "y2", "value": -point["theta"]}]
            reported = {"measurement": {"step_count": 1, "elapsed_time": {"seconds": 0}, "metrics": metrics}}
            studies.trials().addMeasurement(name=trial["name"], body=reported).execute()
            studies.trials().complete(name=trial["name"]).execute()

    optimal = studies.trials().listOptimalTrials(parent=name, body={}).execute()["trials"]
    finals = [[one["value"] for one in trial["finalMeasurement"]["metrics"]] for trial in optimal]
    assert len(studies.trials().list(parent=name).execute()["trials"]) == 20
    assert finals
    assert not [(one, other) for one in finals for other in finals if one[0] < other[0] and one[1] > other[1]]


def test_a_suggestion_learns(server: Server) -> None:
    """The default algorithm comes close to the optimum, whatever it begins with."""
    study = create_study(server, "bowl")

    for _ in range(25):
        (trial,) = suggest(server, study, "me")
        point = read_point(trial)
        loss = (point["x"] - 2) ** 2 + (point["y"] - 7) ** 2
        body = {"finalMeasurement": measurement(loss)}
        assert server.call("POST", f"{trial['name']}:complete", json=body).status == 200

    (best,) = server.call("POST", f"{study}/trials:listOptimalTrials", json={}).json["trials"]
    assert best["finalMeasurement"]["metrics"][0]["value"] < 1


def test_a_used_up_space_is_told_with_429(server: Server) -> None:
    """For which Google's clients stop; zeros are written out. Trials at work are handed out all the same."""
    study = create_study(server, "grid", **GRID)
    trials = suggest(server, study, "a", 3)
    assert [trial["parameters"][0]["intValue"] for trial in trials] == ["0", "1"]
    assert suggest(server, study, "a", 3) == trials

    refused = server.call("POST", f"{study}/trials:suggest", json={"clientId": "b", "suggestionCount": 1})

    assert (refused.status, refused.error["status"]) == (429, "RESOURCE_EXHAUSTED")
    assert server.call("GET", study).json["state"] == "COMPLETED"
    body = {"trialInfeasible": True, "infeasibleReason": None, "finalMeasurement": None}
    ended = server.call("POST", f"{trials[0]['name']}:complete", json=body).json
    assert ended["trialInfeasible"]
    assert "finalMeasurement" not in ended


def test_clients_at_the_same_time_get_different_trials(server: Server) -> None:
    """All numbers, each once."""
    study = create_study(server, "crowd")
    found: list[str] = []

    def run_client(client: str) -> None:
        for _ in range(5):
            (trial,) = suggest(server, study, client)
            found.append(trial["name"])
            body = {"finalMeasurement": measurement(0.0)}
            assert server.call("POST", f"{trial['name']}:complete", json=body).status == 200

    threads = [threading.Thread(target=run_client, args=(f"client {number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(found) == sorted(f"{study}/trials/{number}" for number in range(1, 21))


def test_children_appear_with_their_parents(server: Server) -> None:
    """A trial has the parameters that are active."""
    kind = {
        "parameter": "kind",
        "type": "CATEGORICAL",
        "categoricalValueSpec": {"values": ["tree", "linear"]},
        "childParameterSpecs": [{**DEPTH, "parentCategoricalValues": {"values": ["tree"]}}],
    }
    study = create_study(server, "family", algorithm="GRID_SEARCH", parameters=[kind])

    points = [read_point(trial) for trial in suggest(server, study, "a", 5)]

    assert sorted(points, key=str) == [
        {"kind": "linear"},
        {"kind": "tree", "depth": "0"},
        {"kind": "tree", "depth": "1"},
    ]
    assert server.call("GET", study).json["studyConfig"]["parameters"] == [kind]


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("studies", {"studyConfig": CONFIG}, "study_id"),
        ("studies?studyId=s", {}, "study.study_config.parameters"),
        ("studies?studyId=bad:id", {"studyConfig": CONFIG}, "study_id"),
        ("studies/strict/trials", {}, "trial.parameters"),
        ("studies/strict/trials:suggest", {"clientId": "a"}, "suggestion_count"),
        ("studies/strict/trials:suggest", {"clientId": "a", "suggestionCount": 101}, "suggestion_count"),
        ("studies/strict/trials:suggest", {"suggestionCount": 1}, "client_id"),
        ("studies/strict/trials/1:addMeasurement", {}, "measurement.metrics"),
        ("studies/strict/trials/1:complete", {}, "final_measurement"),
        ("studies/strict/trials/1:complete", {"finalMeasurement": {}}, "final_measurement.metrics"),
    ],
)
def test_what_cannot_be_is_refused_with_its_field(
    server: Server, path: str, body: dict[str, Any], field: str
) -> None:
    if server.call("GET", f"{LOCATION}/studies/strict").status == 404:
        suggest(server, create_study(server, "strict"), "a")

    refused = server.call("POST", f"{LOCATION}/{path}", json=body)

    assert (refused.status, refused.error["status"]) == (400, "INVALID_ARGUMENT")
    assert refused.error["details"][0]["fieldViolations"][0]["field"] == field


@pytest.mark.parametrize(
    ("verb", "path"),
    [
        ("GET", "studies/none"),
        ("DELETE", "studies/none"),
        ("GET", "studies/none/trials"),
        ("POST", "studies/none/trials:suggest"),
        ("GET", "studies/some/trials/9"),
        ("GET", "studies/some/trials/x"),
        ("POST", "studies/some/trials/9:stop"),
        ("GET", "operations/some-9"),
        ("POST", "operations/none:cancel"),
    ],
)
def test_what_is_not_there_is_not_found(server: Server, verb: str, path: str) -> None:
    if server.call("GET", f"{LOCATION}/studies/some").status == 404:
        create_study(server, "some")

    body = {"clientId": "a", "suggestionCount": 1}
    reply = server.call(verb, f"{LOCATION}/{path}", json=body if verb == "POST" else None)

    assert (reply.status, reply.error["status"]) == (404, "NOT_FOUND")


def test_a_name_is_taken_once(server: Server) -> None:
    """Clients look for 409, and then read the study."""
    create_study(server, "twice")

    again = server.call("POST", f"{LOCATION}/studies?study_id=twice", json={"studyConfig": CONFIG})

    assert (again.status, again.error["status"]) == (409, "ALREADY_EXISTS")
