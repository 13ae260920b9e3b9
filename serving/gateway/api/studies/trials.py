"""projects.locations.studies.trials.*"""

from __future__ import annotations

import time
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from serving.errors import InvalidArgument, NotFound, field_error
from serving.gateway.api.query.paging import PagedList
from serving.gateway.api.request_io import json_response, read_resource, whole_list_response
from serving.gateway.api.studies.rendering import TrialRenderer, render_study_operation
from serving.gateway.api.studies.studies import study_name
from serving.gateway.catalog import Catalog, studies, trials
from serving.gateway.catalog.study_checks import check_client_id, read_measurement
from serving.gateway.state.study_records import StudyOperationRecord, StudySnapshot
from serving.gateway.studies.trial_suggester import TrialSuggester
from serving.gateway.thread_pool import ThreadPool
from serving.study_resources import (
    AddTrialMeasurementRequest,
    CompleteTrialRequest,
    SuggestTrialsRequest,
    TrialBody,
)
from tuning.optimal import list_optimal
from tuning.stopping import should_stop
from tuning.study import Trial

# How many lists may wait for a thread.
_QUEUE = 62
# Of a trial's number.
_MAX_DIGITS = 9


class TrialsApi:
    """The methods on trials."""

    def __init__(self, catalog: Catalog, suggester: TrialSuggester) -> None:
        self._catalog = catalog
        self._suggester = suggester
        # A thousand trials with their measurements take tens of milliseconds.
        self._threads = ThreadPool("trials", 2, queue=_QUEUE)

    async def create(self, request: Request) -> Response:
        """projects.locations.studies.trials.create."""
        body = await read_resource(request, TrialBody)
        return self._render(
            request, await self._catalog.change(trials.create_trial, study_name(request), body)
        )

    async def get(self, request: Request) -> Response:
        """projects.locations.studies.trials.get."""
        return self._render(
            request, trials.get_trial(self._catalog.state, study_name(request), _trial_number(request))
        )

    async def list(self, request: Request) -> Response:
        """projects.locations.studies.trials.list."""
        listing = _list_trials(self._find_study(request))
        return await self._threads.run(whole_list_response, request, "trials", listing)

    async def list_optimal(self, request: Request) -> Response:
        """projects.locations.studies.trials.listOptimalTrials."""
        return await self._threads.run(_answer_optimal_trials, self._find_study(request))

    async def delete(self, request: Request) -> Response:
        """projects.locations.studies.trials.delete."""
        await self._catalog.change(trials.delete_trial, study_name(request), _trial_number(request))
        return json_response({})

    async def suggest(self, request: Request) -> Response:
        """projects.locations.studies.trials.suggest: an operation that is done already."""
        sent = await read_resource(request, SuggestTrialsRequest)
        if not 0 < sent.suggestion_count <= trials.MAX_SUGGESTIONS:
            raise field_error(
                InvalidArgument,
                "suggestion_count",
                f"Ask for 1 to {trials.MAX_SUGGESTIONS} trials; {sent.suggestion_count} were asked for.",
            )
        name, client_id = study_name(request), check_client_id(sent.client_id)
        return self._render_operation(await self._suggester.suggest(name, client_id, sent.suggestion_count))

    async def add_measurement(self, request: Request) -> Response:
        """projects.locations.studies.trials.addMeasurement."""
        sent = await read_resource(request, AddTrialMeasurementRequest)
        trial = await self._catalog.change(
            trials.add_measurement,
            study_name(request),
            _trial_number(request),
            read_measurement(sent.measurement, "measurement"),
        )
        return self._render(request, trial)

    async def complete(self, request: Request) -> Response:
        """projects.locations.studies.trials.complete."""
        sent = await read_resource(request, CompleteTrialRequest)
        is_measured = sent.final_measurement is not None and not sent.trial_infeasible
        trial = await self._catalog.change(
            trials.complete_trial,
            study_name(request),
            _trial_number(request),
            final=read_measurement(sent.final_measurement, "final_measurement") if is_measured else None,
            infeasible=sent.trial_infeasible,
            reason=sent.infeasible_reason,
        )
        return self._render(request, trial)

    async def check_early_stopping_state(self, request: Request) -> Response:
        """projects.locations.studies.trials.checkEarlyStoppingState: an operation that is done already."""
        started_at, name, number = time.time(), study_name(request), _trial_number(request)
        snapshot = studies.get_writable_study(self._catalog.state, name, "")
        trial = trials.get_trial(self._catalog.state, name, number)
        operation = await self._catalog.change(
            trials.record_stopping_check,
            name,
            number,
            uid=snapshot.record.study.uid,
            should_stop=await self._threads.run(_should_stop, snapshot, trial),
            started_at=started_at,
        )
        return self._render_operation(operation)

    async def stop(self, request: Request) -> Response:
        """projects.locations.studies.trials.stop."""
        return self._render(
            request,
            await self._catalog.change(trials.stop_trial, study_name(request), _trial_number(request)),
        )

    def _find_study(self, request: Request) -> StudySnapshot:
        return studies.get_study(self._catalog.state, study_name(request))

    def _render(self, request: Request, trial: Trial) -> Response:
        return json_response(TrialRenderer(self._find_study(request).record).render(trial))

    def _render_operation(self, operation: StudyOperationRecord) -> Response:
        snapshot = studies.get_study(self._catalog.state, operation.study)
        return json_response(render_study_operation(snapshot, operation))


def _trial_number(request: Request) -> int:
    """Raises NotFound for what is no number: there is no such trial."""
    text = request.path_params["trial"]
    if not text.isdecimal() or len(text) > _MAX_DIGITS:
        raise NotFound(f"There is no trial {text!r}: trials are numbered from 1.", field="name")
    return int(text)


def _list_trials(snapshot: StudySnapshot) -> PagedList[int]:
    """By their numbers."""
    renderer = TrialRenderer(snapshot.record)

    def render(number: int) -> dict[str, Any]:
        trial = snapshot.find_trial(number)
        return {} if trial is None else renderer.render(trial)

    name = snapshot.record.name
    return PagedList(snapshot.list_numbers(), render, name.format_trial_name, _parse_trial_name)


def _parse_trial_name(name: str) -> int:
    """Raises ValueError."""
    return int(name.rpartition("/")[2][:_MAX_DIGITS])


def _answer_optimal_trials(snapshot: StudySnapshot) -> Response:
    found = list_optimal(snapshot.record.study, tuple(snapshot.iter_trials()))
    return json_response(TrialRenderer(snapshot.record).render_all(found))


def _should_stop(snapshot: StudySnapshot, trial: Trial) -> bool:
    return should_stop(snapshot.record.study, tuple(snapshot.iter_trials()), trial)
