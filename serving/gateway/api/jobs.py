"""projects.jobs.*, and the progress of a job."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from serving.config import ServeConfig
from serving.errors import FailedPrecondition, InvalidArgument, field_error
from serving.gateway.access.access_control import AccessControl
from serving.gateway.api.query.filters import find_required_values, parse_expression
from serving.gateway.api.query.paging import PagedList
from serving.gateway.api.request_io import (
    json_response,
    page_response,
    read_json,
    read_resource,
    read_timeout,
    read_update_mask,
)
from serving.gateway.catalog import Catalog
from serving.gateway.catalog import jobs as rules
from serving.gateway.catalog.tuning_jobs import find_tuning_study
from serving.gateway.jobs.job_queue import JobQueue
from serving.gateway.jobs.job_reader import JobReader
from serving.gateway.request_context import get_caller
from serving.gateway.state.records import JobKindName, JobRecord
from serving.gateway.studies.parameter_importance import ParameterImportance
from serving.resources import Job, to_camel_case


class JobsApi:
    """The methods on jobs; `access` is None while that is off."""

    def __init__(
        self,
        catalog: Catalog,
        job_queue: JobQueue,
        job_reader: JobReader,
        importance: ParameterImportance,
        config: ServeConfig,
        *,
        access: AccessControl | None = None,
    ) -> None:
        self._catalog = catalog
        self._job_queue = job_queue
        self._job_reader = job_reader
        self._importance = importance
        self._queue_jobs = config.queue_jobs
        self._request_timeout = config.request_timeout
        self._access = access

    async def create(self, request: Request) -> Response:
        """projects.jobs.create."""
        body = await read_json(request)
        job = await read_resource(request, Job)
        kind = self._job_queue.kinds[_choose_kind(job)]
        sent = extract_sent_fields(body, kind.name)
        project, caller = request.path_params["project"], get_caller(request.scope)
        if self._access is not None:
            for permission, resource in kind.list_permissions(project, job):
                self._access.check_permission(caller, permission, resource)
        await self._job_queue.check_new_job(kind, job)
        record = await self._catalog.change(
            rules.create_job, kind, project, job, sent=sent, most=self._queue_jobs
        )
        shown = self._render_job(record)
        self._job_queue.start_due_jobs()
        return json_response(shown)

    async def get(self, request: Request) -> Response:
        """projects.jobs.get."""
        return json_response(self._render_job(self._find_record(request)))

    async def list(self, request: Request) -> Response:
        """projects.jobs.list, newest first."""
        project = request.path_params["project"]
        state = self._catalog.state
        places = rules.list_queue_positions(state)

        def render_item(key: tuple[int, str]) -> dict[str, Any]:
            record = state.jobs[key[1]]
            return rules.render_job(self._job_queue.with_current_output(record), places.get(record.name, 0))

        # Whoever asks every few seconds for jobs in some states does not have all jobs looked at.
        states = find_required_values(parse_expression(request.query_params.get("filter", "")), "state")
        jobs = rules.list_jobs(state, project, states)
        listing = PagedList(jobs, render_item, _encode_cursor, _decode_cursor)
        return page_response(request, "jobs", listing)

    async def patch(self, request: Request) -> Response:
        """projects.jobs.patch."""
        mask, given = read_update_mask(request), await read_resource(request, Job)
        return json_response(
            self._render_job(await self._catalog.change(rules.update_job, _job_name(request), given, mask))
        )

    async def cancel(self, request: Request) -> Response:
        """projects.jobs.cancel."""
        await self._job_queue.cancel(_job_name(request))
        return json_response({})

    async def get_progress(self, request: Request) -> Response:
        """`GET /jobs/…`: the counts of a job, its rate, and the end of its log."""
        record = self._find_record(request)
        progress = await self._job_reader.read_progress(record, self._read_timeout(request))
        return json_response({"state": record.job.state, **progress})

    async def list_models(self, request: Request) -> Response:
        """`GET /jobs/…/models`: the folders with models that a training job has made.

        With `trial`, a number or `best`, those of a trial.
        """
        record = self._find_record(request)
        trial = request.query_params.get("trial", "")
        found = await self._job_reader.find_models(record, trial, self._read_timeout(request))
        return json_response({"folder": found.folder, "models": list(found.models)})

    async def get_importance(self, request: Request) -> Response:
        """`GET /jobs/…/importance`: the share of each parameter of a tuning job in its metric."""
        record = self._find_record(request)
        study = find_tuning_study(self._catalog.state, record)
        if study is None:
            raise FailedPrecondition(f"{record.job.job_id} has no trials.")
        return json_response({"shares": await self._importance.get_shares(study)})

    def _read_timeout(self, request: Request) -> float:
        return read_timeout(request, self._request_timeout)

    def _find_record(self, request: Request) -> JobRecord:
        return rules.get_job(self._catalog.state, _job_name(request))

    def _render_job(self, record: JobRecord) -> dict[str, Any]:
        place = rules.list_queue_positions(self._catalog.state).get(record.name, 0)
        return rules.render_job(self._job_queue.with_current_output(record), place)


def _job_name(request: Request) -> str:
    return rules.job_name(request.path_params["project"], request.path_params["job"])


def _encode_cursor(key: tuple[int, str]) -> str:
    return f"{key[1]}/{-key[0]}"


def _decode_cursor(text: str) -> tuple[int, str]:
    name, _, number = text.rpartition("/")
    return -int(number), name


def _choose_kind(job: Job) -> JobKindName:
    """Raises InvalidArgument unless a job has the input of exactly one kind."""
    inputs = {JobKindName.PREDICTION: job.prediction_input, JobKindName.TRAINING: job.training_input}
    given = [kind for kind, sent in inputs.items() if sent is not None]
    if len(given) != 1:
        said = "both are given" if given else "neither is given"
        raise field_error(
            InvalidArgument, "job", f"Give either a predictionInput or a trainingInput; {said}."
        )
    return given[0]


def extract_sent_fields(body: Any, kind: JobKindName) -> rules.SentJobFields:
    """Return the parts of a job that are shown as they were sent; null, also in quotes, is left out."""
    given, options = _find_field(body, kind.input_field), _find_field(body, kind.options_field)
    return rules.SentJobFields(
        given if isinstance(given, dict) else {}, options if isinstance(options, dict) else {}
    )


def _find_field(body: Any, name: str) -> Any:
    """Return a field as it was sent, in either spelling of its name."""
    fields = body if isinstance(body, dict) else {}
    return next((value for key, value in fields.items() if to_camel_case(key) == name), None)
