"""Checks run in a process of their own, in bounded time, one run at a time."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from serving.config import ServeConfig
from serving.errors import ServingError, Unavailable
from serving.gateway.console.health_checks import HealthCheckRunner, HealthReport, WriteCheck
from tests.bounds import HANG_SECONDS

OK = '{"check": "cores", "level": "ok", "message": "2 of 2", "advice": ""}'


def report_of(
    program: str, *, seconds: float = HANG_SECONDS, config: ServeConfig | None = None
) -> HealthReport:
    async def main() -> HealthReport:
        runner = HealthCheckRunner(
            config or ServeConfig(), {}, command=(sys.executable, "-c", program), max_seconds=seconds
        )
        runner.start(quick=True)
        begun = runner.report
        runner.start(quick=False)
        assert runner.report is begun
        async with asyncio.timeout(HANG_SECONDS):
            assert runner._run is not None
            await runner._run
        return runner.report

    return asyncio.run(main())


def test_results_are_read_as_they_come() -> None:
    report = report_of(f"print('''{OK}''')")
    assert [(one.check, one.level) for one in report.results] == [("cores", "ok")]
    assert report.trouble == ""
    assert report.started is not None


def test_checks_get_the_settings_that_are_in_force(tmp_path: Path) -> None:
    program = (
        "import json, os\n"
        "found = {k: v for k, v in os.environ.items() if k.startswith('PILOTLIGHT_')}\n"
        "print(json.dumps({'check': 'x', 'level': 'ok', 'message': json.dumps(found, sort_keys=True)}))"
    )
    config = ServeConfig(state_dir=tmp_path, jobs=5, runtime=("1.15=/a", "2.1=/b"), console=False)
    (result,) = report_of(program, config=config).results
    assert result.message == (
        f'{{"PILOTLIGHT_CONSOLE": "False", "PILOTLIGHT_JOBS": "5", "PILOTLIGHT_RUNTIME": "1.15=/a,2.1=/b", '
        f'"PILOTLIGHT_STATE_DIR": "{tmp_path}"}}'
    )


def test_what_hangs_is_ended_and_said() -> None:
    report = report_of(f"print('''{OK}''', flush=True); import time; time.sleep(600)", seconds=1.5)
    assert len(report.results) == 1
    assert "ended after" in report.trouble


def test_what_fails_is_said() -> None:
    assert "exit code 3" in report_of("import sys; sys.exit(3)").trouble
    assert "cannot be run" in report_of("print('no JSON')").trouble


def test_whether_changes_are_refused_is_looked_at_now_and_then() -> None:
    """In the background: a page does not wait for a database that does not answer."""

    async def main() -> None:
        now, refusal, checks = 0.0, Exception(), 0

        async def check() -> None:
            nonlocal checks
            checks += 1
            if isinstance(refusal, ServingError | OSError):
                raise refusal

        found = WriteCheck(check, clock=lambda: now)

        async def look(after: float) -> str:
            nonlocal now
            now += after
            found.read_trouble()
            for _ in range(3):
                await asyncio.sleep(0)
            return found.read_trouble()

        assert await look(0) == ""
        refusal = Unavailable("no disk")
        assert (await look(1), checks) == ("", 1)
        assert (await look(10), checks) == ("no disk", 2)
        refusal = OSError(5, "Input/output error")
        assert await look(10) == "The state cannot be written: Input/output error."
        refusal = Exception()
        assert await look(10) == ""

    asyncio.run(main())
