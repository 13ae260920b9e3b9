"""Rows for BigQuery, through Google's client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from serving.errors import PermissionDenied, ServingError
from serving.logs.journal import LogKind
from serving.logs.sinks.bigquery_sink import BigQuerySink
from serving.logs.sinks.folder_sink import FolderSink
from serving.logs.sinks.sink_factory import make_sink
from serving.logs.sinks.writer_options import LogWriterOptions
from tests.bigquery import BigQuery, running_bigquery
from tests.serving.logs.sinks.records import NOON, record


@pytest.fixture
def bigquery(monkeypatch: pytest.MonkeyPatch) -> Iterator[BigQuery]:
    with running_bigquery() as found:
        monkeypatch.setenv("BIGQUERY_EMULATOR_HOST", found.url)
        yield found


def options(folder: Path, *, bigquery: bool = True) -> LogWriterOptions:
    return LogWriterOptions(
        spill=folder, logs=folder, rotate_bytes=1, rotate_seconds=1, bigquery=bigquery, stdout=False
    )


def test_a_row_has_the_columns_of_the_contract(bigquery: BigQuery) -> None:
    """In the table that is named, with the record's id for BigQuery to know it by."""
    refused = BigQuerySink("project.dataset.table").write([record(7, b'{"instances": ["\xc3\xbc"]}')], "key")

    assert refused == 0
    assert bigquery.paths == {
        "/bigquery/v2/projects/project/datasets/dataset/tables/table/insertAll?prettyPrint=false"
    }
    assert bigquery.rows == {
        f"{7:032x}": {
            "model": "m",
            "model_version": "v",
            "time": "2030-01-02T12:00:00.000000Z",
            "raw_data": '{"instances": ["ü"]}',
            "raw_prediction": "{}",
            "groundtruth": None,
            "record_id": f"{7:032x}",
            "request_id": "request",
        }
    }


def test_many_rows_are_several_requests(bigquery: BigQuery) -> None:
    """Of a size that BigQuery likes, in rows and in bytes; the same rows again are the same."""
    records = [record(number) for number in range(1201)]
    large = [record(number, b"%d" % number * 200_000) for number in range(2000, 2010)]
    sink = BigQuerySink("p.d.t")
    assert sink.write(records, "") == 0
    assert bigquery.requests == 3
    assert sink.write(large, "") == 0
    assert bigquery.requests == 5
    assert sink.write(records, "") == 0

    assert bigquery.received == 2412
    assert list(bigquery.rows) == [one.id for one in [*records, *large]]


def test_rows_that_do_not_fit_hold_up_no_other(bigquery: BigQuery) -> None:
    """They are counted; a table without the column, a row that is too large."""
    bigquery.invalid = {"3", "5"}
    bigquery.too_large = {"10"}
    refused = BigQuerySink("p.d.t").write([record(number) for number in range(20)], "")

    assert refused == 3
    assert [row["raw_data"] for row in bigquery.rows.values()] == [
        str(number) for number in range(20) if number not in {3, 5, 10}
    ]


@pytest.mark.parametrize(
    ("status", "kind"), [(403, PermissionDenied), (503, ServingError), (404, ServingError)]
)
def test_what_may_be_over_later_is_an_error(bigquery: BigQuery, status: int, kind: type[Exception]) -> None:
    """Nothing is refused; the message names the table."""
    bigquery.failing = status

    with pytest.raises(kind, match=r"p\.d\.t.*it is down"):
        BigQuerySink("p.d.t").write([record(1)], "")


def test_which_addresses_are_tables(bigquery: BigQuery, tmp_path: Path) -> None:
    """Names of three parts, with or without bq://; not when the setting says so."""
    for address in ("p.d.t", "bq://p.d.t", "example.com:p.d.t"):
        assert isinstance(make_sink(LogKind.REQUESTS, address, 7, options(tmp_path)), BigQuerySink)
    for address in ("quarter", "a/b", "../../etc"):
        assert isinstance(make_sink(LogKind.REQUESTS, address, 7, options(tmp_path)), FolderSink)
    off = make_sink(LogKind.REQUESTS, "p.d.t", 7, options(tmp_path, bigquery=False))
    off.write([record(1, time=NOON)], "")

    assert bigquery.requests == 0
    assert [path.parent.parent for path in tmp_path.rglob("*.jsonl")] == [tmp_path / "requests" / "p.d.t"]


def test_without_credentials_rows_go_to_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And it is said where, and why."""
    monkeypatch.delenv("BIGQUERY_EMULATOR_HOST", raising=False)
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)

    assert isinstance(make_sink(LogKind.REQUESTS, "p.d.t", 7, options(tmp_path)), FolderSink)
    (said,) = [record.message for record in caplog.records if record.name.startswith("serving")]
    assert str(tmp_path / "requests" / "p.d.t") in said
    assert "credentials" in said
