"""projects.jobs.*, and how far a job is."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from serving.errors import InvalidArgument, field_error
from serving.gateway.access.caller import Caller, caller_of
from serving.gateway.access.gate import Access, predict_permission
from serving.gateway.api.paging import Listing
from serving.gateway.api.requests import answer_json, answer_page, read, read_json, read_mask
from serving.gateway.catalog import Catalog
from serving.gateway.catalog import jobs as rules
from serving.gateway.jobs.runner import Jobs as Runner
from serving.gateway.records import JobRecord
from serving.gateway.thread_pool import ThreadPool
from serving.resources import Job, resource_from_json

_LOG_LINES = 20
_QUEUE = 62


class Jobs:
    """The methods on jobs; `queue_jobs` is how many may be unfinished, `access` None while that is off."""

    def __init__(
        self, catalog: Catalog, runner: Runner, queue_jobs: int, access: Access | None = None
    ) -> None:
        self._catalog = catalog
        self._runner = runner
        self._queue_jobs = queue_jobs
        self._access = access
        self._threads = ThreadPool("job logs", 2, queue=_QUEUE)

    async def create(self, request: Request) -> Response:
        """projects.jobs.create."""
        body = await read_json(request)
        if _sent(body, "trainingInput", "training_input") is not None:
            raise field_error(
                InvalidArgument,
                "job.training_input",
                "Training is not offered by this server; a job has a predictionInput.",
            )
        job = resource_from_json(Job, body)
        sent = parts_of(body)
        project, caller = request.path_params["project"], caller_of(request.scope)
        self._check_model(caller, project, job)
        await self._runner.check_settings(job)
        record = await self._catalog.change(rules.create_job, project, job, sent, most=self._queue_jobs)
        shown = self._render(record)
        self._runner.fill()
        return answer_json(shown)

    async def get(self, request: Request) -> Response:
        """projects.jobs.get."""
        return answer_json(self._render(self._record(request)))

    async def list(self, request: Request) -> Response:
        """projects.jobs.list, newest first."""
        project = request.path_params["project"]
        state = self._catalog.state
        places = rules.positions(state)

        def show(key: tuple[int, str]) -> dict[str, Any]:
            record = state.jobs[key[1]]
            return rules.render_job(self._runner.fresh(record), places.get(record.name, 0))

        listing = Listing(rules.list_jobs(state, project), show, _token_text, _token_key)
        return answer_page(request, "jobs", listing)

    async def patch(self, request: Request) -> Response:
        """projects.jobs.patch."""
        mask, given = read_mask(request), await read(request, Job)
        return answer_json(
            self._render(await self._catalog.change(rules.update_job, _name(request), given, mask))
        )

    async def cancel(self, request: Request) -> Response:
        """projects.jobs.cancel."""
        await self._runner.cancel(_name(request))
        return answer_json({})

    async def progress(self, request: Request) -> Response:
        """`GET /jobs/…`: how far a job is, how fast, and the end of its log."""
        record = self._record(request)
        progress = self._runner.progress(record)
        output = self._runner.fresh(record).job.prediction_output
        lines = await self._threads.run(self._runner.log(record).tail, _LOG_LINES)
        told: dict[str, Any] = {
            "state": record.job.state,
            "phase": progress.phase or "",
            "attempt": record.attempt,
            "predictions": int(output.prediction_count or 0) if output else 0,
            "errors": int(output.error_count or 0) if output else 0,
            "bytes": progress.counts.bytes,
            "bytesTotal": progress.counts.bytes_total,
            "workers": progress.counts.workers,
            "recordsPerSecond": _rounded(progress.records_per_second),
            "secondsLeft": _rounded(progress.seconds_left),
            "log": lines,
        }
        return answer_json(told)

    def _check_model(self, caller: Caller, project: str, job: Job) -> None:
        """The role that allows a job is on its project: the model of another one takes a role there too."""
        given = job.prediction_input
        name = (given.model_name or given.version_name) if given else ""
        if self._access is not None and name and not name.startswith(f"projects/{project}/"):
            self._access.require(caller, predict_permission(name), name)

    def _record(self, request: Request) -> JobRecord:
        return rules.get_job(self._catalog.state, _name(request))

    def _render(self, record: JobRecord) -> dict[str, Any]:
        place = rules.positions(self._catalog.state).get(record.name, 0)
        return rules.render_job(self._runner.fresh(record), place)


def _name(request: Request) -> str:
    return rules.job_name(request.path_params["project"], request.path_params["job"])


def _token_text(key: tuple[int, str]) -> str:
    return f"{key[1]}/{-key[0]}"


def _token_key(text: str) -> tuple[int, str]:
    name, _, number = text.rpartition("/")
    return -int(number), name


def parts_of(body: Any) -> rules.Sent:
    """The parts of a job that are shown as they were sent; what is null, in quotes too, is left out."""
    given = _sent(body, "predictionInput", "prediction_input")
    options = _sent(body, "batchOptions", "batch_options")
    return rules.Sent(given if isinstance(given, dict) else {}, options if isinstance(options, dict) else {})


def _sent(body: Any, *names: str) -> Any:
    """A field as it was sent, under whichever of its names."""
    return next((body[name] for name in names if name in body), None) if isinstance(body, dict) else None


def _rounded(number: float | None) -> float | None:
    return None if number is None else round(number, 1)
