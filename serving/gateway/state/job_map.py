"""Jobs by name, as the state has them: ended ones are packed, because they are many."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping

import msgspec

from serving.gateway.state.persistent_map import PersistentMap
from serving.gateway.state.records import JobRecord
from serving.resources import JobState

_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(JobRecord)
_STATES = tuple(JobState)
_RAW_DEFLATE = -15
# What most documents of jobs have, so that it takes no bytes in each. Only memory has packed jobs: a change
# of it needs no migration.
_COMMON = (
    b'"batchOptions":{"inputPaths":["gs:// "dataFormat":"JSON","outputPath":"gs://","modelName":"versionName":'
    b'"predictionOutput":{"predictionCount":"errorCount":"nodeHours":"maxWorkerCount":"batchSize":'
    b'{"scaleTier":"CUSTOM","masterType":"n1-standard-4","workerType":"workerCount":"2","parameterServerType":'
    b'"masterConfig":{"imageUri":"gcr.io/cloud-ml-algos/","acceleratorConfig":{"count":"1","type":"NVIDIA_TESLA_'
    b'"hyperparameters":{"goal":"MAXIMIZE","hyperparameterMetricTag":"accuracy","maxTrials":"params":[{'
    b'"parameterName":"type":"DOUBLE","minValue":"maxValue":"scaleType":"UNIT_LINEAR_SCALE"}],'
    b'"scheduling":{"maxRunningTime":"packageUris":["gs://trainer-0.1.tar.gz","trainer-0.1-py3-none-any.whl"],'
    b'"pythonModule":"trainer.task","args":["--epochs","--learning-rate","region":"us-central1",'
    b'"runtimeVersion":"2.11","pythonVersion":"3.7","jobDir":"gs://"},"options":{"restarts":"deploy":{"model":'
    b'"attempt":1,"lost":"run_time":"20","cause":{"call":"","request_id":"","principal":"user:"}}'
    b'{"name":"projects/","project":"","uid":"","number":,"kind":"training","job":{"createTime":"202'
    b'"endTime":"202Z","errorMessage":"The replica master 0 exited with a non-zero status of 1. Termination '
    b'reason: Error."The job was cancelled.","etag":"jobId":"labels":{"startTime":"202"state":"SUCCEEDED",'
    b'"CANCELLED","FAILED","trainingOutput":{"consumedMLUnits":0.0}},"given":{"'
)


class JobMap(Mapping[str, JobRecord]):
    """An immutable, unordered mapping. An ended job is decoded each time it is asked for."""

    __slots__ = ("_records",)

    def __init__(self, records: PersistentMap[str, JobRecord | bytes]) -> None:
        self._records = records

    @classmethod
    def from_mapping(cls, records: Mapping[str, JobRecord]) -> JobMap:
        if isinstance(records, JobMap):
            return records
        packed = {name: _pack_if_ended(record) for name, record in records.items()}
        return cls(PersistentMap.from_mapping(packed))

    def with_item(self, name: str, record: JobRecord) -> JobMap:
        return JobMap(self._records.with_item(name, _pack_if_ended(record)))

    def without_item(self, name: str) -> JobMap:
        """Raises KeyError if there is no such job."""
        return JobMap(self._records.without_item(name))

    def get_state(self, name: str) -> JobState | None:
        """The state of a job, which is known without decoding it. Raises KeyError if there is no such job."""
        found = self._records[name]
        return _STATES[found[0]] if isinstance(found, bytes) else found.job.state

    def __getitem__(self, name: str) -> JobRecord:
        found = self._records[name]
        return _unpack(found) if isinstance(found, bytes) else found

    def __contains__(self, name: object) -> bool:
        return name in self._records

    def __iter__(self) -> Iterator[str]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)


def _pack_if_ended(record: JobRecord) -> JobRecord | bytes:
    """The state's place in `_STATES` in one byte, then the compressed document."""
    state = record.job.state
    if state is None or not state.is_terminal:
        return record
    compressor = zlib.compressobj(wbits=_RAW_DEFLATE, zdict=_COMMON)
    packed = compressor.compress(_ENCODER.encode(record)) + compressor.flush()
    return bytes([_STATES.index(state)]) + packed


def _unpack(packed: bytes) -> JobRecord:
    return _DECODER.decode(zlib.decompressobj(_RAW_DEFLATE, zdict=_COMMON).decompress(packed[1:]))
