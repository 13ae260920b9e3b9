"""Training jobs by form, and the curves of their metrics."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from serving.gateway.state.catalog_state import StateDraft
from serving.gateway.state.records import ChangeStamp
from serving.gateway.state.study_records import TrialRecord
from serving.names import StudyName
from tests.serving.gateway.console.charts.test_metric_curves import write
from tests.serving.gateway.console.world import World, run, visible_text
from tuning.study import Measurement, Trial, TrialState

FORM = "/projects/p/new-training-job"
PARAMETER = {"parameterName": "rate", "type": "DOUBLE", "minValue": 0.1, "maxValue": 1}


def run_console(folder: Path, main: Any) -> None:
    (folder / "state").mkdir()
    run(folder / "state", main, environment=dict(os.environ))


def build_fields(folder: Path, **more: str) -> dict[str, str]:
    (folder / "trainer.tar.gz").write_bytes(b"no archive")
    return {
        "job": "one",
        "package_uris": f"{folder}/trainer.tar.gz",
        "python_module": "trainer.task",
        "args": "--epochs=3\n--name=a b",
        "job_dir": str(folder / "job"),
        "scale_tier": "BASIC",
        "labels": "team=ads",
        **more,
    }


def read_errors(page: str) -> dict[str, str]:
    return dict(re.findall(r'class="invalid" id="error-(\w+)">(.*?)</span>', page))


def test_a_training_job_is_submitted_as_the_form_says(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        spec = {"goal": "MINIMIZE", "maxTrials": 2, "params": [PARAMETER]}
        async with world.browser() as browser:
            await browser.open(FORM)
            page = await browser.post(FORM, build_fields(tmp_path, hyperparameters=json.dumps(spec)))
            assert "The job was submitted." in page
            job = (await world.api.client.get("/v1/projects/p/jobs/one")).json()
            given = job["trainingInput"]
            assert given["args"] == ["--epochs=3", "--name=a b"]
            assert (given["pythonModule"], given["scaleTier"]) == ("trainer.task", "BASIC")
            assert (given["hyperparameters"]["goal"], job["labels"]) == ("MINIMIZE", {"team": "ads"})
            assert "one/curves" in await browser.open("/projects/p/jobs/one")
            await browser.post("/projects/p/jobs/one/cancel", {})

    run_console(tmp_path, main)


def test_what_is_wrong_stands_at_its_field(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        async with world.browser() as browser:
            await browser.open(FORM)
            for field, value in (
                ("job_dir", "relative/<b>"),
                ("python_module", ""),
                ("hyperparameters", "{"),
                ("hyperparameters", json.dumps({"maxTrials": -1, "params": [PARAMETER]})),
                ("labels", "no label"),
                ("worker_count", "2"),
                ("job", "1 is no id"),
            ):
                page = await browser.post(FORM, build_fields(tmp_path, **{field: value}), 400)
                errors = read_errors(page)
                assert list(errors) == [field], (field, visible_text(page))
                assert "<b>" not in errors[field]
                assert f'aria-describedby="error-{field}' in page
                assert 'aria-invalid="true"' in page
                assert "--epochs=3\n--name=a b" in page
            assert (await world.api.client.get("/v1/projects/p/jobs")).json() == {}

    run_console(tmp_path, main)


def test_a_package_that_does_not_exist_is_said_at_its_field(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        async with world.browser() as browser:
            await browser.open(FORM)
            fields = build_fields(tmp_path, package_uris=f"{tmp_path}/trainer.tar.gs")
            errors = read_errors(await browser.post(FORM, fields))
            assert list(errors) == ["package_uris"]
            assert f"Do you mean {tmp_path}/trainer.tar.gz?" in errors["package_uris"]
            page = await browser.post(FORM, {**fields, "replacement": f"{tmp_path}/trainer.tar.gz"})
            assert f">{tmp_path}/trainer.tar.gz</textarea>" in page
            assert read_errors(page) == {}
            assert (await world.api.client.get("/v1/projects/p/jobs")).json() == {}

    run_console(tmp_path, main)


def test_the_form_marks_what_must_be_filled_in(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        async with world.browser() as browser:
            page = await browser.open(FORM)
            fields = re.findall(r'<(?:input|textarea) id="field-(\w+)"([^>]*)>', page)
            needed = {name for name, attributes in fields if " required" in attributes}
            assert needed == {"job", "package_uris", "python_module"}
            for name in needed:
                await browser.post(FORM, build_fields(tmp_path, **{name: ""}), 400)

    run_console(tmp_path, main)


def test_curves_are_drawn_from_event_files(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        write(tmp_path / "job" / "events.tfevents", ("<i>loss", 0, 2.0), ("<i>loss", 5, 1.0))
        async with world.browser() as browser:
            await browser.open(FORM)
            await browser.post(FORM, build_fields(tmp_path))
            part = await browser.client.get("/console/projects/p/jobs/one/curves")
            text = visible_text(part.text)
            assert "<i>loss" in text
            assert re.search(r"step 0\s+step 5", text)
            assert "M6.0,6.0L594.0,194.0" in part.text
            await browser.open("/projects/p/jobs/one")
            await browser.post("/projects/p/jobs/one/cancel", {})

    run_console(tmp_path, main)


def test_the_curves_of_trials(tmp_path: Path) -> None:
    """What they have measured on their way and at their end."""

    def add_trial(draft: StateDraft, _: ChangeStamp, study: StudyName) -> None:
        first, last = (Measurement(step, 1.0, {"loss": value}) for step, value in ((0, 0.5), (2, 0.25)))
        done = TrialState.COMPLETED
        trial = Trial(number=1, parameters={"rate": 0.5}, state=done, measurements=(first,), final=last)
        draft.put(TrialRecord(study, trial))

    async def main(world: World) -> None:
        spec = {"hyperparameterMetricTag": "loss", "maxTrials": 2, "params": [PARAMETER]}
        async with world.browser() as browser:
            await browser.open(FORM)
            await browser.post(FORM, build_fields(tmp_path, hyperparameters=json.dumps(spec)))
            nothing = await browser.client.get("/console/projects/p/jobs/one/curves")
            await world.gateway._catalog.change(add_trial, StudyName("p", "us-central1", "one"))
            part = await browser.client.get("/console/projects/p/jobs/one/curves")

            assert "step" not in visible_text(nothing.text)
            assert re.search(r"step 0\s+step 2", visible_text(part.text))
            assert "trial 1 0.25" in visible_text(part.text)

    run_console(tmp_path, main)
