"""Faster ways on a real server: proven when a version is made, read at a wake, given up at a difference."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import joblib
import msgspec
import numpy as np
import pytest
import xgboost as xgb
from numpy.typing import NDArray
from sklearn.ensemble import RandomForestClassifier

from serving import acceleration_record
from serving.acceleration_record import AccelerationRecord
from tests.emulator import Emulator
from tests.end_to_end.test_autoscaling import asleep
from tests.server import Server, running_node, running_server, until
from tests.written import as_written

MODEL = "projects/fast/models/m"
QUICK = (
    "--idle-timeout", "0.5", "--stable-window", "0.5", "--panic-window", "0.2", "--scale-down-delay", "0.1",
    "--tick", "0.1",
)  # fmt: skip


@dataclass(frozen=True)
class Zoo:
    """Model folders, and the models that say what the answers must be."""

    root: Path
    rows: NDArray[np.float64]
    forest: Any
    boosters: tuple[Any, Any]

    def folder(self, name: str) -> str:
        return str(self.root / name)

    def boosted(self, which: int) -> list[float]:
        """What a booster answers."""
        answers: list[float] = as_written(self.boosters[which].predict(xgb.DMatrix(self.rows)))
        return answers


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Zoo:
    """A forest, and two boosters of the same size that answer differently."""
    root = tmp_path_factory.mktemp("zoo")
    random = np.random.default_rng(0)
    rows, labels = random.standard_normal((300, 5)), random.integers(0, 3, 300)
    forest = RandomForestClassifier(30, random_state=0).fit(rows, labels)
    boosters = tuple(
        xgb.train({"max_depth": 3}, xgb.DMatrix(rows, label=target), num_boost_round=40)
        for target in (labels, -labels)
    )
    for name in ("forest", "first", "second"):
        (root / name).mkdir()
    joblib.dump(forest, root / "forest" / "model.joblib")
    for name, booster in zip(("first", "second"), boosters, strict=True):
        booster.save_model(root / name / "model.ubj")
        (root / name / "model.ubj").rename(root / name / "model.bst")
    return Zoo(root, rows[:20], forest, (boosters[0], boosters[1]))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose versions fall asleep at once."""
    with running_server(tmp_path_factory.mktemp("fast") / "state", *QUICK) as running:
        running.create_model(MODEL)
        yield running
        assert running.stop() == 0


def ways(server: Server, name: str) -> dict[str, Any]:
    """What `pilotlight versions describe` adds to a version."""
    told: dict[str, Any] = server.call("GET", f"/acceleration/{name}").json
    return told


def verdict_of(server: Server, name: str) -> tuple[Path, AccelerationRecord]:
    """The folder with a version's verdict, and the verdict."""
    folder = server.state_dir / "versions" / server.uid(name) / "acceleration"
    verdict = acceleration_record.read_record(folder)
    assert verdict is not None
    return folder, verdict


def told_in_log(server: Server, words: str) -> bool:
    return words in server.log.read_text()


def answers(server: Server, name: str, rows: NDArray[np.float64]) -> Any:
    reply = server.predict(name, rows.tolist())
    assert reply.status == 200, reply.json
    return reply.json["predictions"]


def one_by_one(server: Server, name: str, rows: NDArray[np.float64]) -> list[Any]:
    return [answers(server, name, rows[row : row + 1])[0] for row in range(len(rows))]


def test_a_forest_goes_a_proven_way_and_wakes_with_it(server: Server, zoo: Zoo) -> None:
    """Its answers are scikit-learn's, to the bit, alone and together, before and after sleep."""
    name = f"{MODEL}/versions/forest"
    server.create_version(name, deploymentUri=zoo.folder("forest"))
    wanted = zoo.forest.predict(zoo.rows).tolist()

    told = ways(server, name)

    assert told["way"] != "plain", told
    assert told["ranges"][0]["rows"] == 1
    assert told["ranges"][0]["gain"] > 2
    assert "reason" not in told
    assert answers(server, name, zoo.rows) == one_by_one(server, name, zoo.rows) == wanted
    asleep(server, name)
    folder, _ = verdict_of(server, name)
    before = (folder / acceleration_record.RECORD_FILE).stat()
    assert answers(server, name, zoo.rows) == one_by_one(server, name, zoo.rows) == wanted
    assert (folder / acceleration_record.RECORD_FILE).stat() == before
    assert told_in_log(server, f"prediction strategy: by {told['ranges'][0]['way']}")


def test_a_damaged_verdict_means_the_plain_path_and_a_new_study(server: Server, zoo: Zoo) -> None:
    name = f"{MODEL}/versions/damaged"
    server.create_version(name, deploymentUri=zoo.folder("first"))
    asleep(server, name)
    folder, verdict = verdict_of(server, name)
    text = (folder / acceleration_record.RECORD_FILE).read_text()
    (folder / acceleration_record.RECORD_FILE).write_text(text.replace('"rows":1,', '"rows":2,'))

    assert "is damaged" in ways(server, name)["reason"]
    assert one_by_one(server, name, zoo.rows) == zoo.boosted(0)
    assert told_in_log(server, "the acceleration record is ignored")

    def studied_anew() -> bool:
        answers(server, name, zoo.rows)  # so that it stays awake
        return "reason" not in ways(server, name)

    until(studied_anew, "there is a new verdict")
    assert verdict_of(server, name)[1].key == verdict.key
    assert one_by_one(server, name, zoo.rows) == zoo.boosted(0)


def test_a_damaged_form_means_the_plain_path(server: Server, zoo: Zoo) -> None:
    name = f"{MODEL}/versions/formless"
    server.create_version(name, deploymentUri=zoo.folder("first"))
    asleep(server, name)
    folder, verdict = verdict_of(server, name)
    form = next(folder / one.form for one in verdict.tried if one.form)
    form.write_bytes(form.read_bytes()[:-1] + b"!")

    assert one_by_one(server, name, zoo.rows) == zoo.boosted(0)
    assert told_in_log(server, "predictions are not accelerated: a stored candidate cannot be restored")


def test_a_live_difference_ends_it_for_good(server: Server, zoo: Zoo) -> None:
    """The converted form of another model, as if it were its own: that is found out, and stays so."""
    name, other = f"{MODEL}/versions/mistaken", f"{MODEL}/versions/other"
    server.create_version(name, deploymentUri=zoo.folder("first"))
    server.create_version(other, deploymentUri=zoo.folder("second"))
    asleep(server, name)
    folder, verdict = verdict_of(server, name)
    false, mistaken = verdict_of(server, other)
    shutil.copytree(false, folder, dirs_exist_ok=True)
    acceleration_record.write_record(folder, msgspec.structs.replace(mistaken, key=verdict.key))
    row, (right, wrong) = zoo.rows[:1], (zoo.boosted(0)[0], zoo.boosted(1)[0])

    assert answers(server, name, row) == [wrong]
    until(lambda: answers(server, name, row) == [right], "the difference is found")

    assert told_in_log(server, "the accelerated prediction differed from the library's; acceleration is off")
    told = ways(server, name)
    assert told["way"] == "plain"
    assert told["reason"].startswith("A faster way was wrong for a request: ")
    metrics = server.http.get(f"{server.url}/metrics").text
    counted = [line for line in metrics.splitlines() if "comparisons_total{" in line and '"mistaken"' in line]
    assert [line.rpartition(" ")[2] for line in sorted(counted)] == ["1.0", "0.0"]
    asleep(server, name)
    assert one_by_one(server, name, zoo.rows) == zoo.boosted(0)
    assert ways(server, name)["way"] == "plain"


def test_nothing_of_that_where_it_is_switched_off(zoo: Zoo, tmp_path: Path) -> None:
    with running_server(tmp_path / "state", "--acceleration", "off") as server:
        server.create_model(MODEL)
        name = f"{MODEL}/versions/off"
        server.create_version(name, deploymentUri=zoo.folder("first"))

        assert ways(server, name) == {
            "version": name,
            "way": "plain",
            "reason": "It is switched off (setting acceleration).",
        }
        assert one_by_one(server, name, zoo.rows) == zoo.boosted(0)
        assert not list((server.state_dir / "versions").glob("*/acceleration"))


def test_a_node_alone_studies_in_the_background_once(zoo: Zoo, tmp_path: Path) -> None:
    """The first answers go the plain way; the next process begins with the verdict of the cache."""
    model_dir = tmp_path / "model"
    shutil.copytree(zoo.folder("forest"), model_dir)
    wanted = zoo.forest.predict(zoo.rows).tolist()

    def way(node: Server) -> str:
        told: str = node.call("GET", "/stats").json["acceleration"]["way"]
        return told

    with running_node(model_dir) as node:
        assert one_by_one(node, "models/m", zoo.rows) == wanted
        until(lambda: way(node).startswith("by "), "the study is done")
        assert one_by_one(node, "models/m", zoo.rows) == wanted
    with running_node(model_dir) as node:
        until(lambda: node.call("GET", "/readyz").status == 200, "it is ready")
        assert way(node).startswith("by ")
        assert one_by_one(node, "models/m", zoo.rows) == wanted


def test_a_prepared_node_is_fast_from_its_first_answer_on(zoo: Zoo, tmp_path: Path) -> None:
    """Without a cache to write to, and with the record beside a model that nobody writes to again."""
    model_dir, nowhere = tmp_path / "model", tmp_path / "nowhere"
    shutil.copytree(zoo.folder("forest"), model_dir)
    nowhere.write_text("no folder")
    told = run_command("prepare", "--model-dir", str(model_dir))
    for file in (model_dir, *model_dir.rglob("*")):
        file.chmod(0o555 if file.is_dir() else 0o444)

    assert f"Written to {model_dir}/.pilotlight" in told
    with running_node(model_dir, "--cache-dir", str(nowhere)) as node:
        until(lambda: node.call("GET", "/readyz").status == 200, "it is ready")
        assert node.call("GET", "/stats").json["acceleration"]["way"].startswith("by ")
        assert one_by_one(node, "models/m", zoo.rows) == zoo.forest.predict(zoo.rows).tolist()


def test_a_node_ignores_what_was_prepared_for_another_model(zoo: Zoo, tmp_path: Path) -> None:
    first, second, output = tmp_path / "first", tmp_path / "second", tmp_path / "prepared"
    for folder in (first, second):
        shutil.copytree(zoo.folder(folder.name), folder)
    run_command("prepare", "--model-dir", str(first), "--output", str(output))

    with running_node(second, "--prepared-dir", str(output)) as node:
        assert one_by_one(node, "models/m", zoo.rows) == zoo.boosted(1)
        until(
            lambda: told_in_log(node, f"record in {output} is ignored: it is for other model files"),
            "that is in the log",
        )


@pytest.mark.soak
def test_a_model_in_a_bucket_is_prepared_into_a_folder(zoo: Zoo, tmp_path: Path, emulator: Emulator) -> None:
    uri = f"gs://{emulator.bucket()}/model"
    emulator.put(f"{uri}/model.bst", (Path(zoo.folder("first")) / "model.bst").read_bytes())
    environment = {"STORAGE_EMULATOR_HOST": emulator.url}
    flags = ("prepare", "--model-dir", uri, "--cache-dir", str(tmp_path / "cache"))

    refused = run_command(*flags, environment=environment, code=1)
    assert f"--output FOLDER. Copied from there to {uri}/.pilotlight/, a node finds it." in refused
    run_command(*flags, "--output", str(tmp_path / "prepared"), environment=environment)

    record = acceleration_record.read_record(tmp_path / "prepared")
    assert record is not None
    assert record.is_accelerated
    # As it says: the copy beside the model is found.
    emulator.put(
        f"{uri}/.pilotlight/{acceleration_record.RECORD_FILE}",
        (tmp_path / "prepared" / acceleration_record.RECORD_FILE).read_bytes(),
    )
    again = run_command(*flags, "--output", str(tmp_path / "again"), environment=environment)
    found = acceleration_record.read_record(tmp_path / "again")
    assert "Written to" in again
    assert found is not None
    assert found.key == record.key


def run_command(*arguments: str, environment: Mapping[str, str] | None = None, code: int = 0) -> str:
    """What a command prints, in a process of its own."""
    done = subprocess.run(
        [Path(sys.executable).with_name("pilotlight"), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **(environment or {})},
        check=False,
    )
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr
