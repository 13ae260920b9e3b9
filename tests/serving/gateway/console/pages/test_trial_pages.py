"""The pages of a tuning job that cannot start, on the whole gateway."""

from __future__ import annotations

import os
from pathlib import Path

from tests.serving.gateway.console.world import World, run, visible_text

JOB = "/projects/p/jobs/tuned"


def test_a_tuning_job_leads_to_its_trials_and_from_there_to_a_model(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        (tmp_path / "archive.tar.gz").write_bytes(b"no archive")
        parameter = {"parameterName": "rate", "type": "DOUBLE", "minValue": 0.1, "maxValue": 1}
        given = {
            "pythonModule": "trainer.task",
            "packageUris": [str(tmp_path / "archive.tar.gz")],
            "region": "us-central1",
            "scaleTier": "BASIC",
            "jobDir": str(tmp_path / "out"),
            "hyperparameters": {"goal": "MAXIMIZE", "maxTrials": 2, "params": [parameter]},
        }
        sent = await world.api.client.post(
            "/v1/projects/p/jobs", json={"jobId": "tuned", "trainingInput": given}
        )
        assert sent.status_code == 200, sent.text
        async with world.browser() as browser:
            page = await browser.open(JOB)
            assert f'href="/console{JOB}/trials"' in page
            assert "Tuning: trainer.task" in visible_text(page)
            page = await browser.open(f"{JOB}/trials")
            assert "No trial has a value yet" in page
            assert "trials.js" in page
            assert "No trial of tuned has succeeded" in await browser.open(f"{JOB}/models", 400)
            await browser.post(f"{JOB}/cancel", {})

    (tmp_path / "state").mkdir()
    run(tmp_path / "state", main, environment=dict(os.environ))
