"""What happens to a study while points for it are being made."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

import pytest

from autoscaler.supervision import Supervisor
from serving.errors import Internal, NotFound, Unavailable
from serving.gateway.catalog import Catalog, studies, trials
from serving.gateway.catalog.study_checks import read_study
from serving.gateway.state.store import SqliteStore
from serving.gateway.studies.suggestion_service import SuggestionService
from serving.gateway.studies.trial_suggester import TrialSuggester
from serving.resources import resource_from_json
from serving.study_resources import StudyConfig
from tests.bounds import HANG_SECONDS
from tests.serving.gateway.catalog.study_world import CONFIG, NAME, point
from tuning.messages import SuggestionAnswer, TuningAnswer

OTHER = {
    **CONFIG,
    "parameters": [{"parameter": "y", "type": "DOUBLE", "doubleValueSpec": {"minValue": 0, "maxValue": 1}}],
}


class Scene:
    """A study in a catalog, and a process that answers once `go` is set; its last answer is repeated."""

    def __init__(self, folder: Path, *answers: SuggestionAnswer) -> None:
        self.catalog = Catalog(SqliteStore(folder / "state.db"), lambda _: None)
        self.service = SuggestionService(self._connect, Supervisor())
        self.suggester = TrialSuggester(self.catalog, self.service)
        self.asked, self.go = asyncio.Event(), asyncio.Event()
        self.has_ended = False
        self._answers = list(answers)

    async def create(self, config: Mapping[str, Any]) -> None:
        study = read_study(resource_from_json(StudyConfig, dict(config)))
        await self.catalog.change(studies.create_study, NAME, study, most=0)

    async def ask(self, line: bytes, within: float) -> TuningAnswer:
        self.asked.set()
        await self.go.wait()
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]

    @contextlib.asynccontextmanager
    async def _connect(self) -> AsyncGenerator[Scene]:
        yield self


@contextlib.asynccontextmanager
async def run_scene(folder: Path, *answers: SuggestionAnswer) -> AsyncGenerator[Scene]:
    async with asyncio.timeout(HANG_SECONDS):
        scene = Scene(folder, *answers)
        await scene.catalog.open()
        await scene.create(CONFIG)
        try:
            yield scene
        finally:
            await scene.service.close()
            scene.catalog.close()


@pytest.mark.parametrize(
    "answer", [SuggestionAnswer((point(1),)), SuggestionAnswer((), exhausted=True)], ids=["points", "used-up"]
)
@pytest.mark.parametrize("config", [CONFIG, OTHER], ids=["same-space", "other-space"])
def test_a_study_that_takes_the_name_of_another_does_not_get_its_points(
    tmp_path: Path, answer: SuggestionAnswer, config: dict[str, Any]
) -> None:
    async def main() -> None:
        async with run_scene(tmp_path, answer) as scene:
            task = asyncio.create_task(scene.suggester.suggest(NAME, "client", 1))
            await scene.asked.wait()
            await scene.catalog.change(studies.delete_study, NAME)
            await scene.create(config)
            before = scene.catalog.state.studies[NAME]
            scene.go.set()
            with pytest.raises(NotFound):
                await task
            assert scene.catalog.state.studies[NAME] == before

    asyncio.run(main())


def test_points_outside_the_space_are_not_stored(tmp_path: Path) -> None:
    async def main() -> None:
        async with run_scene(tmp_path, SuggestionAnswer(({"x": 2.0, "depth": 1},))) as scene:
            scene.go.set()
            with pytest.raises(Internal, match='not in the search space: Parameter "x"'):
                await scene.suggester.suggest(NAME, "client", 1)
            assert scene.catalog.state.studies[NAME].trial_count == 0

    asyncio.run(main())


def test_a_point_that_another_trial_has_by_then_is_made_anew(tmp_path: Path) -> None:
    """As other servers make the same points of the same trials."""

    async def main() -> None:
        async with run_scene(tmp_path, SuggestionAnswer((point(1),)), SuggestionAnswer((point(2),))) as scene:
            task = asyncio.create_task(scene.suggester.suggest(NAME, "client", 1))
            await scene.asked.wait()
            await scene.catalog.change(trials.add_trials, NAME, [point(1)], client_id="other")
            scene.go.set()
            assert (await task).suggested == (2,)
            assert trials.get_trial(scene.catalog.state, NAME, 2).parameters == point(2)

    asyncio.run(main())


def test_points_are_not_made_anew_without_end(tmp_path: Path) -> None:
    class Rivals(Scene):
        """Take each point before it is handed out."""

        async def ask(self, line: bytes, within: float) -> TuningAnswer:
            await self.catalog.change(trials.add_trials, NAME, [point(1)], client_id="other")
            return SuggestionAnswer((point(1),))

    async def main() -> None:
        async with asyncio.timeout(HANG_SECONDS):
            scene = Rivals(tmp_path)
            await scene.catalog.open()
            await scene.create(CONFIG)
            with pytest.raises(Unavailable, match="taken the points"):
                await scene.suggester.suggest(NAME, "client", 1)
            await scene.service.close()
            scene.catalog.close()

    asyncio.run(main())
