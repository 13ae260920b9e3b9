"""What servers of one database ask each other about jobs, and how a question is answered.

Who may ask is checked by the server that the client has asked. The other one answers by what it has itself:
a question takes one hop, never more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from serving.gateway.jobs.job_kind import FoundModels
from serving.gateway.jobs.job_reader import Curves, LocalJobReader
from serving.gateway.jobs.log_query import LogPart, LogQuery
from serving.gateway.state.catalog_state import CatalogState
from serving.gateway.state.records import JobRecord


class _AboutJob(msgspec.Struct, frozen=True):
    """`job` is the name of its record, `uid` distinguishes it from a later one of the same name."""

    job: str
    uid: str


class ProgressQuestion(_AboutJob, frozen=True, tag="progress"):
    """`LocalJobReader.read_progress`."""


class LastLinesQuestion(_AboutJob, frozen=True, tag="lastLines"):
    """`LocalJobReader.read_last_lines`."""


class LogQuestion(_AboutJob, frozen=True, tag="log"):
    """`LocalJobReader.read_log_part`."""

    query: LogQuery
    place: int


class ModelsQuestion(_AboutJob, frozen=True, tag="models"):
    """`LocalJobReader.find_models`."""

    trial: str


class CurvesQuestion(_AboutJob, frozen=True, tag="curves"):
    """`LocalJobReader.read_curves`."""


JobQuestion = ProgressQuestion | LastLinesQuestion | LogQuestion | ModelsQuestion | CurvesQuestion

_ENCODER = msgspec.msgpack.Encoder()
_QUESTION_DECODER = msgspec.msgpack.Decoder(JobQuestion)
_PROGRESS_DECODER = msgspec.msgpack.Decoder(dict[str, Any])
_LINES_DECODER = msgspec.msgpack.Decoder(list[str])
_LOG_DECODER = msgspec.msgpack.Decoder(LogPart)
_MODELS_DECODER = msgspec.msgpack.Decoder(FoundModels)
_CURVES_DECODER = msgspec.msgpack.Decoder(dict[str, dict[str, list[tuple[float, float]]]])


def encode_question(question: JobQuestion) -> bytes:
    return _ENCODER.encode(question)


def decode_progress(answer: bytes) -> dict[str, Any]:
    return _PROGRESS_DECODER.decode(answer)


def decode_last_lines(answer: bytes) -> list[str]:
    return _LINES_DECODER.decode(answer)


def decode_log_part(answer: bytes) -> LogPart:
    return _LOG_DECODER.decode(answer)


def decode_models(answer: bytes) -> FoundModels:
    return _MODELS_DECODER.decode(answer)


def decode_curves(answer: bytes) -> Curves:
    return _CURVES_DECODER.decode(answer)


class JobQuestionAnswerer:
    """Answers what other servers ask about jobs that this one has worked on.

    `owns_work` tells whether it is this server that does the work now.
    """

    def __init__(
        self,
        reader: LocalJobReader,
        read_state: Callable[[], CatalogState],
        owns_work: Callable[[], bool],
    ) -> None:
        self._reader = reader
        self._read_state = read_state
        self._owns_work = owns_work

    async def answer(self, encoded: bytes) -> bytes | None:
        """None where this server cannot say, or does not know the question. Raises a ServingError."""
        try:
            question = _QUESTION_DECODER.decode(encoded)
        except msgspec.DecodeError:
            return None
        record = self._read_state().jobs.get(question.job)
        if record is None or record.uid != question.uid:
            return None
        return await self._answer_about(question, record)

    async def _answer_about(self, question: JobQuestion, record: JobRecord) -> bytes | None:
        reader = self._reader
        match question:
            case ProgressQuestion():
                if not self._owns_work():
                    return None
                return _ENCODER.encode(await reader.read_progress(record))
            case LastLinesQuestion():
                return _ENCODER.encode(await reader.read_last_lines(record))
            case LogQuestion(query=query, place=place):
                return _ENCODER.encode(await reader.read_log_part(record, query, place))
            case ModelsQuestion(trial=trial):
                return _ENCODER.encode(await reader.find_models(record, trial))
            case CurvesQuestion():
                return _ENCODER.encode(await reader.read_curves(record))
