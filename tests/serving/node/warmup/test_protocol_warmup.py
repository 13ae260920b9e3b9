"""What a node asks itself: a question of every protocol, each of which is answered."""

from __future__ import annotations

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd
import pytest
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

from serving.config import PredictSettings
from serving.model_schema import ModelSchema, ModelSignature
from serving.node.batcher import BatchLimits
from serving.node.compute import AdaptiveExecutor
from serving.node.predict import NodePredictor
from serving.node.warmup import grpc_warmup, protocol_warmup
from serving.node.warmup.protocol_warmup import (
    ExampleRequest,
    StubRuntime,
    make_http_examples,
    warm_up_predictor,
)
from serving.protocols import DEFAULT_METADATA, Dialect
from serving.runtimes import LoadSpec, Runtime, load_model
from serving.runtimes.schema_inference import infer_model_schema
from tests.end_to_end.models import data

EVERY = {
    "/v1/projects/local/models/model:predict",
    "/v1/models/model:predict",
    "/v2/models/model/infer",
}


def matrix(folder: Path) -> None:
    """Rows of numbers."""
    joblib.dump(LogisticRegression().fit(*data()), folder / "model.joblib")


def table(folder: Path) -> None:
    """Columns of numbers and texts."""
    rows = pd.DataFrame({"age": [20.0, 40.0, 60.0, 30.0], "city": ["Oslo", "Rome", "Oslo", "Rome"]})
    columns = make_column_transformer((OneHotEncoder(), ["city"]), remainder="passthrough")
    model = make_pipeline(columns, LogisticRegression()).fit(rows, [0, 1, 0, 1])
    joblib.dump(model, folder / "model.joblib")


def loaded(write: Any, folder: Path) -> tuple[Runtime, ModelSchema]:
    write(folder)
    runtime = load_model(LoadSpec(folder))
    return runtime, infer_model_schema(runtime, folder)


def predictor(runtime: Runtime, schema: ModelSchema, threads: ThreadPoolExecutor) -> NodePredictor:
    bounds = BatchLimits(merge_rows=1, queue_requests=10, queue_bytes=1 << 20)
    place = AdaptiveExecutor(threads, may_inline=True)
    return NodePredictor(runtime, place, bounds, PredictSettings(), marks=bytearray(), schema=schema)


@pytest.mark.parametrize("write", [matrix, table, None], ids=["matrix", "table", "stand-in"])
def test_every_protocol_is_asked_and_answers(write: Any, tmp_path: Path) -> None:
    """Over HTTP and over gRPC, with tensors of numbers and of texts; nothing is refused."""
    runtime, schema = (
        (StubRuntime(), StubRuntime().infer_schema()) if write is None else loaded(write, tmp_path)
    )
    asked = [*make_http_examples(schema), *grpc_warmup.make_grpc_examples(schema)]

    with ThreadPoolExecutor(1) as threads:
        asking = predictor(runtime, schema, threads)
        asyncio.run(warm_up_predictor(asking, asked, rounds=2, seconds=30))

    assert {question.path for question in asked if question.path} == EVERY
    assert {question.call.dialect for question in asked} == {*Dialect} - {Dialect.VERTEX}
    assert (asking.requests, asking.errors) == (2 * len(asked), 0)


def test_no_question_takes_no_time(tmp_path: Path) -> None:
    """A model without an example is practised by nobody, however busy the machine is."""
    with ThreadPoolExecutor(1) as threads:
        asking = predictor(*loaded(matrix, tmp_path), threads)
        asyncio.run(warm_up_predictor(asking, [], rounds=1, seconds=0))

    assert asking.requests == 0


def test_what_cannot_be_told_is_not_asked() -> None:
    """Without an example nothing; without tensors that fit it, what takes instances."""
    schema = StubRuntime().infer_schema()
    bare = ModelSchema("custom", schema.signatures, strict=False)
    (rows,) = schema.signatures[schema.default].inputs
    pair = ModelSignature((rows, rows), ())
    odd = ModelSchema("custom", {schema.default: pair}, example=7, answer=1)

    assert not [*make_http_examples(bare), *grpc_warmup.make_grpc_examples(bare)]
    assert [question.path for question in make_http_examples(odd)] == [
        "/v1/projects/local/models/model:predict",
        "/v1/models/model:predict",
    ]
    assert not [*grpc_warmup.make_grpc_examples(odd)]


class Counting(StubRuntime):
    """Counts how often it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def predict(self, instances: Any, /, **_: Any) -> list[float]:
        self.asked += 1
        return super().predict(instances)  # type: ignore[return-value]


def test_practice_takes_no_longer_than_it_may() -> None:
    """What is under way when the time is over is given up."""
    with ThreadPoolExecutor(1) as threads:
        model = Counting()
        asking = predictor(model, model.infer_schema(), threads)
        asyncio.run(
            warm_up_predictor(
                asking, [*make_http_examples(model.infer_schema())], rounds=1_000_000, seconds=0.1
            )
        )

    assert 0 < model.asked < 1_000_000


def test_over_a_connection_answers_are_read_whole() -> None:
    """Whatever the pieces that they come in; a connection that ends is the end of practice."""
    question = ExampleRequest(DEFAULT_METADATA, b'{"instances": [1]}', "/v1/models/model:predict")
    heard = []

    async def main() -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        reader, writer = await asyncio.open_connection(sock=theirs)

        async def answer() -> None:
            for _ in range(3):
                head = await reader.readuntil(b"\r\n\r\n")
                heard.append(head + await reader.readexactly(len(question.body)))
                for piece in (b"HTTP/1.1 200 OK\r\nconte", b"nt-length: 3\r\n\r\n1", b"23"):
                    writer.write(piece)
                    await writer.drain()
            writer.close()

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(answer())
            with ours:
                await protocol_warmup.warm_up_connection(ours, [question], 4, 30)

    asyncio.run(main())

    assert len(heard) == 3
    assert all(one.startswith(b"POST /v1/models/model:predict HTTP/1.1\r\n") for one in heard)


def test_numbers_of_every_type_are_rows_of_one() -> None:
    """As the schema has them: a size that is open is one."""
    tensors = protocol_warmup.make_example_tensors(StubRuntime().infer_schema())

    assert np.array_equal(tensors["instances"], [[0.5, 1.5]])
