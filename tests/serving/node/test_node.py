"""The node without a server, in the process of the test."""

from __future__ import annotations

import asyncio
import math
import resource
from pathlib import Path
from typing import Any

import pytest

from serving.config import PredictSettings
from serving.errors import LoadFailed, ServingError
from serving.node import app
from serving.node.app import ReadyReport, ServingNode
from serving.runtimes import LoadSpec
from serving.runtimes.schema_inference import unknown_schema
from tests.bounds import HANG_SECONDS
from tests.serving.node.asking import ask


@pytest.fixture
def source(tmp_path: Path) -> LoadSpec:
    """A forest in model.joblib."""
    import joblib
    from sklearn.ensemble import RandomForestRegressor

    model = RandomForestRegressor(3, random_state=0).fit([[0.0], [1.0], [2.0]], [0.0, 1.0, 2.0])
    joblib.dump(model, tmp_path / "model.joblib")
    return LoadSpec(tmp_path, "SCIKIT_LEARN")


def node(
    source: LoadSpec, told: list[Any], *, waking: bool, merge: str, patience: float = math.inf
) -> tuple[ServingNode, asyncio.Event]:
    """A node, what it has told, and whether that is all."""
    done = asyncio.Event()

    def tell(message: ReadyReport | ServingError) -> None:
        told.append(message)
        done.set()

    settings = PredictSettings(merge_requests=merge, merge_rows=8)
    made = ServingNode(
        source,
        settings,
        marks=bytearray(2),
        waking=waking,
        schema=unknown_schema("sklearn") if waking else None,
        batch_check_seconds=patience,
        on_ready=tell,
        on_failed=tell,
    )
    return made, done


@pytest.mark.parametrize(
    ("waking", "sizes"), [(False, [1, 8, 8, 1, 1, *[1] * 6]), (True, [1])], ids=["created", "woken"]
)
def test_a_version_that_wakes_is_warmed_with_one_row(
    source: LoadSpec, waking: bool, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """When it is created, also with its example and with as many rows as one call may get.

    What is known of it is asked in practice: the first question twice, the others once.
    """
    from serving.runtimes.sklearn_runtime.runtime import SklearnRuntime

    predict, calls = SklearnRuntime.predict, []

    def counted(self: Any, instances: Any, /, **parameters: Any) -> Any:
        calls.append(len(instances))
        return predict(self, instances, **parameters)

    monkeypatch.setattr(SklearnRuntime, "predict", counted)
    monkeypatch.setattr(app, "_WARMUP_SECONDS", 60)  # a busy machine practises less
    told: list[Any] = []

    async def main() -> Any:
        made, done = node(source, told, waking=waking, merge="on")
        made.start()
        await done.wait()
        assert made.predictor is not None
        reply = await ask(made.predictor, [2.0], slot=1)
        made.stop()
        return reply

    reply = asyncio.run(main())

    assert calls == [*sizes, 1]
    assert reply.status == 200
    [report] = told
    assert (report.framework, report.merge, report.merge_reason) == ("SCIKIT_LEARN", True, "asked for")
    assert bool(report.schema) is not waking
    assert report.to_dict().keys() >= {"load_seconds", "warm_seconds", "warnings", "pilot"}


def test_a_node_without_patience_is_ready_first_and_merges_later(source: LoadSpec) -> None:
    """Until it is known that requests may share calls, they share none."""
    told: list[Any] = []

    async def main() -> None:
        made, done = node(source, told, waking=False, merge="auto", patience=0.0)
        made.start()
        await done.wait()
        predictor = made.predictor
        assert predictor is not None
        await asyncio.gather(*(ask(predictor, [2.0]) for _ in range(3)))
        assert predictor.collect_stats()["mergedRequests"] == 0
        async with asyncio.timeout(HANG_SECONDS):
            while not predictor.collect_stats()["mergedRequests"]:
                await asyncio.gather(*(ask(predictor, [2.0]) for _ in range(3)))
                await asyncio.sleep(0.01)
        made.stop()

    asyncio.run(main())

    [report] = told
    assert (report.merge, report.merge_reason) == (False, "not known yet")


def test_what_cannot_be_loaded_is_told_once(tmp_path: Path) -> None:
    """The node says why, and predicts nothing."""
    told: list[Any] = []

    async def main() -> None:
        made, done = node(LoadSpec(tmp_path), told, waking=True, merge="auto")
        made.start()
        await done.wait()
        made.stop()
        assert made.predictor is None
        assert made.collect_stats().keys() == {"pid", "uptimeSeconds"}

    asyncio.run(main())

    [error] = told
    assert "No model file was found" in error.message


def test_a_model_that_lowers_the_limit_of_open_files_can_be_reached(tmp_path: Path) -> None:
    """Once it is loaded the limit is as before; where that cannot be, it is not ready."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    code = tmp_path / "code"
    code.mkdir()
    (code / "lowering.py").write_text(
        "import resource\n"
        "class Routine:\n"
        "    @classmethod\n"
        "    def from_path(cls, folder):\n"
        f"        resource.setrlimit(resource.RLIMIT_NOFILE, (100, {before[1]}))\n"
        "        return cls()\n"
        "    def predict(self, instances, **parameters):\n"
        "        return instances\n"
    )
    told: list[Any] = []

    async def main() -> None:
        source = LoadSpec(tmp_path, prediction_class="lowering.Routine", packages=(code,))
        made, done = node(source, told, waking=True, merge="off")
        made.start()
        await done.wait()
        made.stop()

    try:
        asyncio.run(main())
        assert isinstance(told[0], ReadyReport)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == before
        with pytest.raises(LoadFailed, match="lowered the limit of open files"):
            app._restore_open_files((before[0], 1 << 40))  # nobody may have so many
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
