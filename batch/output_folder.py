"""The output folder of a job: claimed by one job at a time, and published or cleaned as a whole.

`.pilotlight/claim` names the job and its stage; it stays when the job is done, so that a later attempt (the
server may have died before it knew) finds that nothing is left to do.
`.pilotlight/UID/PLAN/` holds what attempts with one plan have written so far: the next one goes on there.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum

import msgspec

from batch.messages import JOB_FOLDER, JobReport, JobRequest
from batch.records.writers import SealedShard, common_header, sum_shards
from serving.artifacts.storage import FileStore
from serving.errors import FailedPrecondition, NotFound

_PREFIX = "prediction."
_RESULT_KINDS = ("results", "errors")
# Below the ten connections that the storage client's HTTP pool keeps.
_THREADS = 8


class _Stage(StrEnum):
    """RUNNING: nothing is published yet; PUBLISHING: perhaps a part of it; ENDED: `said` is the job's end."""

    RUNNING = "RUNNING"
    PUBLISHING = "PUBLISHING"
    ENDED = "ENDED"


class _Claim(msgspec.Struct, frozen=True):
    job: str
    uid: str
    stage: _Stage = _Stage.RUNNING
    said: JobReport | None = None
    plan: str = ""


class OutputFolder:
    """The claim and the results of a job in its output folder. Methods raise the errors of `FileStore`."""

    def __init__(self, files: FileStore, request: JobRequest) -> None:
        self._files = files
        self._job = request.job
        self._uid = request.uid
        self._root = request.output_path.rstrip("/") or "/"
        self._csv = request.output_format == "CSV"
        self._claim_uri = f"{self._root}/{JOB_FOLDER}/claim"
        self._folder = f"{self._root}/{JOB_FOLDER}/{request.uid}"
        self._plan = ""

    def find_earlier_end(self) -> JobReport | None:
        """How the job has ended already, if it has; deletes what its last attempt had no time to delete."""
        claim = self._read_claim()
        if claim is None or claim.uid != self._uid or claim.said is None:
            return None
        self._files.delete_folder(self._folder)
        return claim.said

    def claim(self) -> JobReport | None:
        """Claim the folder, and take back what an earlier attempt has published.

        Returns how the job has ended already, if it has.

        Raises FailedPrecondition when it is claimed by, or holds results of, another job.
        """
        claim = self._claim_or_read()
        if claim is not None and claim.stage is _Stage.ENDED:
            return claim.said
        if claim is not None and claim.stage is _Stage.PUBLISHING:
            self._remove_published()
            # What it has moved is missing among the temporary files.
            self._delete_leftovers()
            self._write_claim(_Stage.RUNNING)
        elif (names := self._list_published()) and claim is None:
            self._files.delete(self._claim_uri)
            raise self._occupied_error(names)
        self._files.delete_partials(self._claim_uri)
        return None

    def open_work_folder(self, plan: str) -> str:
        """The folder for the temporary files of attempts with this plan; those of others are deleted.

        `plan` is a digest of all that results depend on. The folder must be claimed.
        """
        claim = self._read_claim()
        self._plan = plan
        if claim is None or claim.plan != plan:
            self._delete_leftovers()
            self._write_claim(_Stage.RUNNING)
        return f"{self._folder}/{plan}"

    def publish(self, shards: Sequence[SealedShard], said: JobReport) -> None:
        """Move the shards' files to the names of results, and record how the job ended.

        Before it moves any file, raises FailedPrecondition, or InvalidOutputs when shards differ in their
        columns.
        """
        header = common_header(shards)
        claim = self._read_claim()
        if claim is None or claim.uid != self._uid:
            raise FailedPrecondition(
                f"{self._root} was taken by another job meanwhile; nothing was published. Choose another "
                "outputPath."
            )
        self._write_claim(_Stage.PUBLISHING)
        count = len(shards)
        suffix = ".csv" if self._csv else ""
        moves = [
            (s.results, f"results-{_format_shard(place, count)}{suffix}") for place, s in enumerate(shards)
        ]
        if any(shard.errors for shard in shards):
            moves += [
                (s.errors, f"errors-{_format_shard(place, count)}.jsonl") for place, s in enumerate(shards)
            ]
        with ThreadPoolExecutor(_THREADS) as pool:
            for done in [pool.submit(self._move_file, *move) for move in moves]:
                done.result()
        _, stats = sum_shards(shards)
        lines = "".join(f"{item!r}\n" for item in stats.items())
        self._files.write(self._result_uri(f"errors_stats-{_format_shard(0, 1)}"), lines.encode())
        if self._csv:
            self._files.write(self._result_uri("results_header.csv"), _format_csv_row(header))
        self._write_claim(_Stage.ENDED, said)
        self._files.delete_folder(self._folder)

    def delete_job_files(self) -> None:
        """Delete everything of this job, and nothing of others."""
        claim = self._read_claim()
        if claim is None:
            self._files.delete_partials(self._claim_uri)
        elif claim.uid == self._uid:
            if claim.stage is not _Stage.RUNNING:
                self._remove_published()
            self._delete_leftovers()
            self._files.delete(self._claim_uri)

    def _delete_leftovers(self) -> None:
        """Delete what earlier attempts have written; the claim must be this job's."""
        self._files.delete_folder(self._folder)
        self._files.delete_partials(self._claim_uri)

    def _claim_or_read(self) -> _Claim | None:
        """This job's earlier claim, None if it is new. Raises FailedPrecondition if it is another job's."""
        fresh = _Claim(self._job, self._uid)
        if self._files.create_if_absent(self._claim_uri, msgspec.json.encode(fresh)):
            return None
        claim = self._read_claim()
        if claim is None:  # another job has just deleted it
            return self._claim_or_read()
        if claim.uid == self._uid:
            return claim
        if claim.stage is not _Stage.ENDED:
            raise FailedPrecondition(
                f"The job {claim.job} is writing to {self._root}. Choose another outputPath, or wait for its "
                f"end; if there is no such job any more, delete {self._claim_uri}."
            )
        if names := self._list_published():
            raise self._occupied_error(names)
        # The results of that job were removed; only its claim is left.
        self._files.delete(self._claim_uri)
        return self._claim_or_read()

    def _occupied_error(self, names: Sequence[str]) -> FailedPrecondition:
        return FailedPrecondition(
            f"{self._root} holds results of another job already: {names[0]}. Choose another outputPath, or "
            "remove them first."
        )

    def _list_published(self) -> list[str]:
        found = []
        for kind in _RESULT_KINDS:
            try:
                found += [item.uri for item in self._files.glob(self._result_uri(f"{kind}*"))]
            except NotFound:
                continue
        return found

    def _remove_published(self) -> None:
        for name in self._list_published():
            self._files.delete(name)

    def _move_file(self, source: str, name: str) -> None:
        if source:
            self._files.move(source, self._result_uri(name))
        else:
            self._files.write(self._result_uri(name), b"")

    def _result_uri(self, rest: str) -> str:
        return f"{self._root}/{_PREFIX}{rest}"

    def _write_claim(self, stage: _Stage, said: JobReport | None = None) -> None:
        claim = _Claim(self._job, self._uid, stage, said, self._plan)
        self._files.write(self._claim_uri, msgspec.json.encode(claim))

    def _read_claim(self) -> _Claim | None:
        try:
            return msgspec.json.decode(self._files.read(self._claim_uri), type=_Claim)
        except (NotFound, NotADirectoryError):
            return None


def _format_csv_row(names: Sequence[str]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(names)
    return text.getvalue().encode()


def _format_shard(index: int, count: int) -> str:
    return f"{index:05d}-of-{count:05d}"
