"""What is fuzzed: each target makes an input from a seed and tries it.

To try is to hold it against one rule: bad input is answered with a 4xx in Google's form, never with another
exception, and whatever is taken is what the plain parser reads.
"""

from __future__ import annotations

import datetime
import operator
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import joblib
import msgspec
import numpy as np
import orjson
import pandas as pd
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LinearRegression
from starlette.requests import Request
from xgboost import XGBClassifier

from serving.gateway.api.jobs import extract_sent_fields
from serving.gateway.api.query.paging import PagedList
from serving.gateway.api.request_io import read_json, read_resource, read_update_mask
from serving.gateway.api.studies.rendering import TrialRenderer, render_study
from serving.gateway.catalog import jobs, lookup, models, studies, trials, versions
from serving.gateway.catalog.job_checks.prediction_checks import PredictionRules
from serving.gateway.catalog.job_checks.training_checks import TrainingRules
from serving.gateway.catalog.study_checks import read_study
from serving.gateway.jobs.job_kind import TimeLimits, find_deadline
from serving.gateway.jobs.kinds.training.admission import Room, measure_record
from serving.gateway.state.catalog_state import CatalogState, StateDraft
from serving.gateway.state.records import ChangeStamp, DeploymentInfo, ModelRecord, VersionRecord
from serving.names import (
    ModelName,
    StudyName,
    VersionName,
    check_id,
    check_location,
    check_project,
    parse_model_or_version_name,
)
from serving.resources import Job, Model, Version, VersionState, operation_to_json, resource_from_json
from serving.resources import resource_to_json as resource_to_wire
from serving.runtimes import (
    ArrayFormat,
    ColumnsFormat,
    ColumnSpec,
    InputFormat,
    LoadSpec,
    RowsFormat,
    Runtime,
    load_model,
)
from serving.runtimes.input_conversion import convert_instances
from serving.runtimes.json_codec import InstancesDecoder, encode_predictions
from serving.study_resources import StudyBody, StudyConfig, TrialBody
from tests.fuzz import making, protocols, tensorflow_serving
from tests.fuzz.judging import refused, same

Input = Any


@dataclass(frozen=True)
class Target:
    """`share` is how often it is tried, beside the others'."""

    name: str
    share: int
    make: Callable[[Random], Input]
    attempt: Callable[[Input], None]


def _float(name: str, shape: tuple[int | None, ...] | None) -> ColumnSpec:
    return ColumnSpec(name, np.dtype(np.float32), shape)


FORMS: Mapping[str, InputFormat] = {
    "rows": RowsFormat(),
    "any width": ArrayFormat(None, nullable=False),
    "four": ArrayFormat(4, nullable=False, allows_objects=True),
    "nullable": ArrayFormat(4, nullable=True),
    "floats": ColumnsFormat((_float("x", (4,)),)),
    "doubles": ColumnsFormat((ColumnSpec("x", np.dtype(np.float64), None),)),
    "scalars": ColumnsFormat((_float("x", ()),)),
    "bytes of integers": ColumnsFormat((ColumnSpec("x", np.dtype(np.int8), (None,)),)),
    "integers": ColumnsFormat((ColumnSpec("x", np.dtype(np.int64), (4,)),)),
    "unsigned": ColumnsFormat((ColumnSpec("x", np.dtype(np.uint64), (4,)),)),
    "booleans": ColumnsFormat((ColumnSpec("flag", np.dtype(np.bool_), ()),)),
    "texts": ColumnsFormat((ColumnSpec("s", np.dtype(object), None),)),
    "several": ColumnsFormat(
        (
            _float("x", ()),
            ColumnSpec("y", np.dtype(np.int32), ()),
            ColumnSpec("flag", np.dtype(np.bool_), ()),
            ColumnSpec("s", np.dtype(object), ()),
        )
    ),
}


# ---- the codec


@cache
def _decoder() -> InstancesDecoder:
    return InstancesDecoder()


def decode(body: bytes, form: InputFormat) -> tuple[Any, dict[str, Any]]:
    """The batch and the other fields of a body."""
    return _decoder().decode(body, lambda _: form)


def _codec(given: tuple[str, bytes]) -> None:
    """What is decoded is what the plain way through Python values gives, to the bit."""
    name, body = given
    form = FORMS[name]
    found: list[Any] = []
    if refused(lambda: found.extend(decode(body, form))):
        return
    batch, parameters = found
    document = orjson.loads(body)
    same(batch, convert_instances(document.pop("instances"), form, lenient=True))
    assert orjson.dumps(parameters) == orjson.dumps(document), "other parameters"
    if isinstance(batch, np.ndarray):
        orjson.loads(encode_predictions(batch))
    elif isinstance(batch, dict):
        orjson.loads(encode_predictions(_numbers(batch)))


def _numbers(batch: dict[str, Any]) -> Any:
    return {name: column for name, column in batch.items() if column.dtype.kind != "O"}


def _lines(given: tuple[str, bytes]) -> None:
    name, data = given
    form = FORMS[name]
    batch = _decoder().decode_dense_lines(data, form)
    if batch is not None:
        same(batch, convert_instances([orjson.loads(line) for line in data.split(b"\n")], form, lenient=True))


# ---- models


@cache
def _runtimes() -> Mapping[str, Runtime]:
    """A small model of each library that is quick to import, with names for its features or without."""
    rows = np.random.default_rng(1).normal(size=(60, 4))
    classes = (rows.sum(axis=1) > 0).astype(int)
    frame = pd.DataFrame(rows, columns=["x", "y", "flag", "s"])
    with tempfile.TemporaryDirectory() as root:
        models = {
            "forest": RandomForestClassifier(2, random_state=0).fit(rows, classes),
            "linear": LinearRegression().fit(frame, classes),
            "booster": XGBClassifier(n_estimators=2).fit(frame, classes),
        }
        found = {}
        for name, model in models.items():
            (Path(root) / name).mkdir()
            joblib.dump(model, Path(root) / name / "model.joblib")
            found[name] = load_model(LoadSpec(Path(root) / name))
    return found


def _predict(given: tuple[str, bytes]) -> None:
    """Whatever a model is given, it answers, or says what is wrong with it."""
    name, body = given
    runtime = _runtimes()[name]

    def does() -> None:
        batch, parameters = _decoder().decode(body, runtime.input_format)
        encode_predictions(runtime.predict(batch, **parameters))

    refused(does)


@cache
def _asking() -> protocols.Asking:
    return protocols.Asking(_runtimes())


# ---- resources and rules


_STAMP_TIME = "2026-01-01T00:00:00Z"
_NAME = VersionName("p", "m", "v")


def _state() -> CatalogState:
    version = Version(name=str(_NAME), state=VersionState.READY, etag="AAAA", create_time=_STAMP_TIME)
    record = VersionRecord(name=_NAME, uid="1", version=version, deployed=DeploymentInfo(model_dir="/m"))
    model = ModelRecord(name=_NAME.parent, model=Model(name=str(_NAME.parent), etag="AAAA"), default="v")
    return CatalogState({_NAME.parent: model}, {_NAME: record})


STATE = _state()


def _stamp() -> ChangeStamp:
    return ChangeStamp(datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC), "00" * 8)


def _run(coroutine: Any) -> Any:
    """The result of a coroutine that waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("it waits")


def _request(body: bytes, query: str = "") -> Request:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    raw = query.encode("utf-8", "surrogatepass")
    scope = {"type": "http", "method": "POST", "path": "/", "headers": [], "query_string": raw}
    return Request(scope, receive)


def _create_model(body: bytes) -> None:
    def does() -> None:
        model = _run(read_resource(_request(body), Model))
        draft = StateDraft(STATE)
        answer = models.create_model(draft, _stamp(), "p", model)
        _kept(draft)
        orjson.dumps(resource_to_wire(answer))

    refused(does)


def _create_version(body: bytes) -> None:
    def does() -> None:
        version = _run(read_resource(_request(body), Version))
        draft = StateDraft(STATE)
        operation = versions.create_version(draft, _stamp(), _NAME.parent, version)
        _kept(draft)
        orjson.dumps(operation_to_json(operation))

    refused(does)


def _patch(given: tuple[str, bytes]) -> None:
    query, body = given

    def does() -> None:
        request = _request(body, query)
        mask, version = read_update_mask(request), _run(read_resource(request, Version))
        draft = StateDraft(STATE)
        operation = versions.update_version(draft, _stamp(), _NAME, version, mask)
        _kept(draft)
        orjson.dumps(operation_to_json(operation))

    def does_model() -> None:
        request = _request(body, query)
        mask, model = read_update_mask(request), _run(read_resource(request, Model))
        draft = StateDraft(STATE)
        operation = models.update_model(draft, _stamp(), _NAME.parent, model, mask)
        _kept(draft)
        orjson.dumps(operation_to_json(operation))

    refused(does)
    refused(does_model)


def _create_job(body: bytes) -> None:
    def does() -> None:
        sent = _run(read_json(_request(body)))
        job = msgspec.structs.replace(_run(read_resource(_request(body), Job)), job_id="j")
        draft = StateDraft(STATE)
        kind = _PREDICTION if job.training_input is None else _TRAINING
        record = jobs.create_job(
            draft, _stamp(), kind, "p", job, sent=extract_sent_fields(sent, kind.name), most=9
        )
        measure_record(record, Room(seats=8, memory_bytes=1 << 30, gpus=2))
        if job.training_input is not None:
            find_deadline(record, TimeLimits(running=1.0))
        _kept(draft)
        orjson.dumps(jobs.render_job(record))

    refused(does)


def _create_study(body: bytes) -> None:
    def does() -> None:
        sent = _run(read_resource(_request(body), StudyBody))
        draft = StateDraft(STATE)
        study = read_study(sent.study_config)
        block = studies.create_study(draft, _stamp(), _STUDY_NAME, study, most=9)
        _kept(draft)
        orjson.dumps(render_study(block.record))

    refused(does)


def _create_trial(body: bytes) -> None:
    def does() -> None:
        sent = _run(read_resource(_request(body), TrialBody))
        draft = StateDraft(STATE)
        study = studies.create_study(draft, _stamp(), _STUDY_NAME, _STUDY, most=9).record
        trial = trials.create_trial(draft, _stamp(), _STUDY_NAME, sent)
        _kept(draft)
        assert draft.studies[_STUDY_NAME].find_trial(1) == trial
        orjson.dumps(TrialRenderer(study).render(trial))

    refused(does)


def _kept(draft: StateDraft) -> None:
    """What is written down is read back as it was."""
    for record in draft.changes.values():
        if record is not None:
            written = msgspec.json.encode(record)
            assert msgspec.json.encode(msgspec.json.decode(written, type=type(record))) == written


# ---- queries and names


_ROWS = [
    {"name": f"projects/p/models/m{number}", "state": "READY", "labels": {"team": "ads"}, "isDefault": True}
    for number in range(5)
]


_LISTING = PagedList(_ROWS, lambda row: row, operator.itemgetter("name"))


def _page(query: dict[str, str]) -> None:
    refused(lambda: orjson.dumps(_LISTING.page(query)))


def _names(text: str) -> None:
    for check in (
        check_project,
        check_location,
        lambda given: check_id(given, "model.name"),
        lambda given: lookup.resolve_version(STATE, parse_model_or_version_name(given)),
        lambda given: lookup.get_model(STATE, ModelName("p", given)),
    ):
        refused(lambda check=check: check(text))  # type: ignore[misc]


# ---- making their inputs


_FILTER = (
    "name",
    "state",
    "labels.team",
    "a.b.c",
    ":",
    "=",
    "!=",
    "READY",
    '"',
    '"a b"',
    "(",
    ")",
    "AND",
    "OR",
    "NOT",
    "-",
    "m*",
    "*",
    ".",
)
_PREDICTION, _TRAINING = PredictionRules(), TrainingRules()
_NAMED = ("projects", "/", "models", "p", "m", "versions", "v", ":predict", "..", "%2f", ":", "a" * 200)
_TOKENS = ("cHJvamVjdHMv", "cHJvamVjdHMvcC9tb2RlbHMvbTE", "=", "A", "+/", "\n", "é")
_SIZES = ("1", "0", "-1", "9", "99999999999999999999", "1e3", "\u0663", "1_0", " 2", "9" * 5000)
_MASKS = (
    "description",
    "labels",
    ",",
    "autoScaling",
    "auto_scaling.min_nodes",
    "manualScaling.nodes",
    "defaultVersion.name",
    "request_logging_config",
    ".",
    "etag",
    "_",
    "%2C",
    "labels.a",
    "autoScaling.metrics.name",
)
_MODEL_FIELDS = (
    "name",
    "description",
    "labels",
    "regions",
    "etag",
    "defaultVersion",
    "onlinePredictionLogging",
    "default_version",
    "nonsense",
)
_VERSION_FIELDS = (
    "name", "description", "labels", "deploymentUri", "framework", "predictionClass", "packageUris",
    "autoScaling",    "manualScaling", "requestLoggingConfig", "container", "routes", "runtimeVersion",
    "etag", "state",
    "isDefault",    "acceleratorConfig", "explanationConfig", "machineType", "createTime", "auto_scaling",
)  # fmt: skip
_JOB_FIELDS = ("jobId", "predictionInput", "batchOptions", "labels", "etag", "state", "trainingInput")
_INPUT_FIELDS = (
    "dataFormat", "inputPaths", "outputPath", "region", "versionName", "modelName", "uri", "batchSize",
    "maxWorkerCount", "outputDataFormat", "runtimeVersion", "signatureName",
)  # fmt: skip
_TRAINING_FIELDS = (
    "args", "enableWebAccess", "hyperparameters", "jobDir", "masterConfig", "masterType", "packageUris",
    "pythonModule", "region", "runtimeVersion", "scaleTier", "scheduling", "workerConfig", "workerCount",
    "workerType", "evaluatorCount", "parameter_server_count",
)  # fmt: skip
_STUDY_FIELDS = ("algorithm", "automatedStoppingConfig", "metrics", "parameters")
_TRIAL_FIELDS = (
    "clientId", "finalMeasurement", "infeasibleReason", "measurements", "parameters", "state",
    "trialInfeasible",
)  # fmt: skip
_STUDY_NAME = StudyName("p", "here", "s")
# What makes a document likely to be taken; the rest of it may still be anything.
_GOOD = {
    "name": ('"v2"',),
    "deploymentUri": ('"gs://b/m"', '"/models/m"', '"file:///m"'),
    "description": ('"d"', '"\u0000"'),
    "labels": ('{"team":"ads"}', '{"team":1}', '{"":""}'),
    "autoScaling": ('{"minNodes":1}', '{"minNodes":"1","metrics":[{"name":"CPU_USAGE","target":60}]}'),
    "manualScaling": ('{"nodes":"2"}', '{"nodes":99999999999999999999}'),
    "runtimeVersion": ('"2.11"',),
    "etag": ('"AAAA"', '"not base64"'),
    "requestLoggingConfig": ('{"samplingPercentage":1e0,"bigqueryTableName":"a.b.c"}',),
    "jobId": ('"j"',),
    "dataFormat": ('"JSON"', '"TF_RECORD"'),
    "inputPaths": ('["/in/*"]', '["gs://b/*","gs://b/c"]'),
    "outputPath": ('"/out"', '"gs://b/out"'),
    "region": ('"us-central1"',),
    "versionName": (f'"{_NAME}"',),
    "packageUris": ('["gs://b/t.tar.gz"]', '["/t.whl","/t.whl"]'),
    "pythonModule": ('"trainer.task"',),
    "scaleTier": ('"custom"', '"BASIC"', '"STANDARD_1"', "null"),
    "masterType": ('"n1-standard-4"', '"standard_gpu"'),
    "workerType": ('"n1-standard-4"',),
    "workerCount": ('"2"', "3", '"' + "9" * 5000 + '"', '"-1"'),
    "masterConfig": (
        '{"imageUri":"gcr.io/cloud-ml-algos/boosted_trees"}',
        '{"acceleratorConfig":{"type":"NVIDIA_TESLA_T4","count":"' + "9" * 5000 + '"}}',
    ),
    "scheduling": ('{"maxRunningTime":"3.5s","priority":5}', '{"maxWaitTime":"' + "9" * 5000 + 's"}'),
    "jobDir": ('"gs://b/out"', '"/out"'),
    "batchSize": ("64", '"64"', "1e2", '"' + "9" * 5000 + '"'),
    "maxWorkerCount": ("2", '"' + "9" * 5000 + '"'),
    "batchOptions": ('{"keys":["a"],"maxErrors":"10%"}', '{"maxErrors":"' + "9" * 5000 + '%"}'),
    "metrics": ('[{"metric":"loss","goal":"MINIMIZE"}]', '[{"metric":"a"},{"metric":"b"}]', "[{}]"),
    "parameters": (
        '[{"parameter":"x","type":"DOUBLE","doubleValueSpec":{"minValue":-1e308,"maxValue":1e308}}]',
        '[{"parameter":"n","type":"INTEGER","integerValueSpec":{"maxValue":"' + "9" * 5000 + '"}}]',
        '[{"parameter":"d","type":"DISCRETE","discreteValueSpec":{"values":[1,2]},"childParameterSpecs":'
        '[{"parameter":"c","type":"CATEGORICAL","categoricalValueSpec":{"values":["","a"]},'
        '"parentDiscreteValues":{"values":[2]}}]}]',
        '[{"parameter":"x","floatValue":0.5}]',
        '[{"parameter":"x","intValue":"' + "9" * 5000 + '"}]',
    ),
    "algorithm": ('"GRID_SEARCH"', '"random_search"', "null"),
    "automatedStoppingConfig": ('{"medianAutomatedStoppingConfig":{"useElapsedTime":true}}', "{}"),
    "finalMeasurement": (
        '{"stepCount":"7","elapsedTime":"1.5s","metrics":[{"metric":"loss","value":0}]}',
        '{"elapsedTime":{"seconds":' + "9" * 5000 + '},"metrics":[{"metric":"loss","value":1e999}]}',
    ),
    "measurements": ('[{"metrics":[{"metric":"loss","value":"NaN"}]}]', "[]"),
    "state": ('"COMPLETED"', '"REQUESTED"'),
}
_STUDY = read_study(
    resource_from_json(
        StudyConfig,
        orjson.loads(f'{{"metrics":{_GOOD["metrics"][0]},"parameters":{_GOOD["parameters"][0]}}}'),
    )
)


def _fields(random: Random, names: tuple[str, ...], wanted: tuple[str, ...]) -> str:
    parts = []
    for name in [*wanted, *random.sample(names, random.randrange(4))]:
        good = name in _GOOD and random.random() < 0.9
        parts.append(f'"{name}": {random.choice(_GOOD[name]) if good else making.value(random, 3)}')
    return ",".join(parts)


def _document(random: Random, names: tuple[str, ...], wanted: tuple[str, ...]) -> bytes:
    text = "{" + _fields(random, names, wanted) + "}"
    return making.mutated(random, text.encode("utf-8", "surrogatepass"))


def _job(random: Random) -> bytes:
    needed = ("dataFormat", "inputPaths", "outputPath", "region", "versionName")
    inner = _fields(random, _INPUT_FIELDS, needed)
    text = "{" + _fields(random, _JOB_FIELDS, ("jobId",)) + ',"predictionInput": {' + inner + "}}"
    return making.mutated(random, text.encode("utf-8", "surrogatepass"))


def _training_job(random: Random) -> bytes:
    inner = _fields(random, _TRAINING_FIELDS, ("region", "packageUris", "pythonModule"))
    text = "{" + _fields(random, _JOB_FIELDS, ("jobId",)) + ',"trainingInput": {' + inner + "}}"
    return making.mutated(random, text.encode("utf-8", "surrogatepass"))


def _study(random: Random) -> bytes:
    text = '{"studyConfig": {' + _fields(random, _STUDY_FIELDS, ("metrics", "parameters")) + "}}"
    return making.mutated(random, text.encode("utf-8", "surrogatepass"))


def _query(random: Random) -> dict[str, str]:
    made = {
        "filter": making.text(random, _FILTER),
        "pageToken": making.text(random, _TOKENS) if random.random() < 0.5 else "",
        "pageSize": random.choice(_SIZES) if random.random() < 0.5 else "",
    }
    return {name: value for name, value in made.items() if value}


def _form(random: Random) -> str:
    return random.choice(tuple(FORMS))


# What instances of a form are like, by the names of `making.LIKE`.
_LIKE = {
    "scalars": "numbers",
    "bytes of integers": "whole",
    "integers": "whole",
    "unsigned": "whole",
    "booleans": "booleans",
    "texts": "texts",
    "several": "objects",
}


def _body(random: Random) -> tuple[str, bytes]:
    form = _form(random)
    return form, making.body(random, _LIKE.get(form, "rows"))


def _to_predict(random: Random) -> tuple[str, bytes]:
    like = random.choice(("rows", "rows", "whole", "objects"))
    return random.choice(("forest", "linear", "booster")), making.body(random, like)


TARGETS = (
    Target("codec", 60, _body, _codec),
    Target("predict", 2, _to_predict, _predict),
    Target("tensorflow serving", 10, tensorflow_serving.make, tensorflow_serving.attempt),
    Target("protocols", 10, lambda random: _asking().make(random), lambda given: _asking().attempt(given)),
    Target("lines", 10, lambda random: (_form(random), making.lines(random)), _lines),
    Target("model", 4, lambda random: _document(random, _MODEL_FIELDS, ("name",)), _create_model),
    Target(
        "version",
        6,
        lambda random: _document(random, _VERSION_FIELDS, ("name", "deploymentUri")),
        _create_version,
    ),
    Target(
        "patch",
        5,
        lambda random: (
            f"updateMask={making.text(random, _MASKS)}",
            _document(random, _VERSION_FIELDS, ("description",)),
        ),
        _patch,
    ),
    Target("job", 5, _job, _create_job),
    Target("training job", 5, _training_job, _create_job),
    Target("study", 5, _study, _create_study),
    Target("trial", 5, lambda random: _document(random, _TRIAL_FIELDS, ("parameters",)), _create_trial),
    Target("page", 5, _query, _page),
    Target("names", 5, lambda random: making.text(random, _NAMED), _names),
)
