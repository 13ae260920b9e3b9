"""The output folder of a job, on a disk and in a bucket alike."""

from __future__ import annotations

import ast
import csv
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from batch.messages import FailureStatus, JobOutcome, JobReport, JobRequest, ModelSource
from batch.output_folder import OutputFolder
from batch.records.writers import SealedShard
from serving.artifacts.storage import FileStore
from serving.errors import FailedPrecondition, InvalidOutputs, NotFound
from tests.emulator import Emulator

pytestmark = [
    # google-api-core wishes for a package that only gRPC clients use.
    pytest.mark.filterwarnings("ignore:Please install grpcio-status:ImportWarning"),
    # The storage client drops the responses of failed downloads without closing them.
    pytest.mark.filterwarnings("ignore:unclosed.*socket:ResourceWarning"),
]

FILES = FileStore(retry_seconds=10)
DONE = JobReport(done=JobOutcome(3, 2, 1.5, 2.5))


@dataclass(frozen=True)
class Place:
    """An output folder."""

    root: str

    def output(
        self, uid: str = "u1", attempt: int = 1, *, output_format: str = "JSON", files: FileStore = FILES
    ) -> OutputFolder:
        request = JobRequest(
            job=f"job_{uid}",
            uid=uid,
            attempt=attempt,
            model=ModelSource(),
            input_paths=(),
            output_path=self.root,
            output_format=output_format,
            scratch_dir="",
            cache_dir="",
            cache_bytes=0,
        )
        return OutputFolder(files, request)

    def put(self, name: str, text: str = "") -> str:
        uri = f"{self.root}/{name}"
        FILES.write(uri, text.encode())
        return uri

    def names(self) -> list[str]:
        """All files, hidden ones too, relative to the folder."""
        return [item.uri.removeprefix(f"{self.root}/") for item in FILES.list(self.root)]

    def text(self, name: str) -> str:
        return FILES.read(f"{self.root}/{name}").decode()

    def claim(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.text(".pilotlight/claim"))
        return found


@pytest.fixture(params=["disk", "bucket"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "disk":
        return Place(str(tmp_path / "deep" / "out"))
    emulator: Emulator = request.getfixturevalue("emulator")
    return Place(f"gs://{emulator.bucket()}/out")


def sealed(place: Place, shard: int, **details: Any) -> SealedShard:
    """A complete shard of the job u1, whose files hold their own names."""
    folder = ".pilotlight/u1/plan"
    results = place.put(f"{folder}/pieces/{shard}.results", f"results {shard}\n")
    stats: dict[str, int] = details.get("stats", {})
    errors = place.put(f"{folder}/pieces/{shard}.errors", f"errors {shard}\n") if stats else ""
    return SealedShard(shard, results, errors, 1, stats, details.get("header", ()))


PUBLISHED = [
    "prediction.errors-00000-of-00003.jsonl",
    "prediction.errors-00001-of-00003.jsonl",
    "prediction.errors-00002-of-00003.jsonl",
    "prediction.errors_stats-00000-of-00001",
    "prediction.results-00000-of-00003",
    "prediction.results-00001-of-00003",
    "prediction.results-00002-of-00003",
]


def publish(place: Place, output: OutputFolder, said: JobReport = DONE) -> None:
    """Three shards, one with errors."""
    stats = {'It\'s "bad"\n': 1, "more": 5}
    output.publish([sealed(place, 0), sealed(place, 1, stats=stats), sealed(place, 2)], said)


# ---- claims


def test_a_free_folder_is_taken(place: Place) -> None:
    """It need not exist; a claim in it says whose it is, and other files in it are no matter."""
    place.put("prediction.txt")
    place.put("predictions/prediction.results-00000-of-00001")

    assert place.output().find_earlier_end() is None
    assert place.output().claim() is None
    assert place.output().find_earlier_end() is None
    assert place.claim()["job"] == "job_u1"
    assert place.claim()["uid"] == "u1"


def test_a_folder_of_a_running_job_is_refused(place: Place) -> None:
    """The error names the job and what to do; its files stay."""
    place.output().claim()
    place.put(".pilotlight/u1/1/x")

    with pytest.raises(FailedPrecondition, match="The job job_u1 is writing to"):
        place.output("u2").claim()
    place.output("u2").delete_job_files()

    assert place.names() == [".pilotlight/claim", ".pilotlight/u1/1/x"]
    assert place.claim()["uid"] == "u1"


@pytest.mark.parametrize(
    "name",
    [
        "prediction.results-00000-of-00001",
        "prediction.results_header.csv",
        "prediction.errors-00000-of-00001.jsonl",
        "prediction.errors_stats-00000-of-00001",
    ],
)
def test_results_of_another_job_are_kept(place: Place, name: str) -> None:
    """Of one that is over and left no claim, too: the folder is refused, and is left as it was."""
    place.put(name, "theirs")

    with pytest.raises(FailedPrecondition, match="holds results of another job") as caught:
        place.output().claim()
    assert name in caught.value.message
    place.output().delete_job_files()

    assert place.names() == [name]
    assert place.text(name) == "theirs"


def test_results_of_a_job_that_is_done_are_kept(place: Place) -> None:
    """Its claim and its results stay."""
    output = place.output()
    output.claim()
    publish(place, output)
    before = place.names()

    with pytest.raises(FailedPrecondition, match="holds results of another job"):
        place.output("u2").claim()
    place.output("u2").delete_job_files()

    assert place.names() == before


def test_a_folder_whose_results_were_removed_is_free(place: Place) -> None:
    """What is left of the job before is its claim, which goes."""
    output = place.output()
    output.claim()
    publish(place, output)
    for name in PUBLISHED:
        FILES.delete(f"{place.root}/{name}")

    assert place.output("u2").claim() is None
    assert place.claim()["uid"] == "u2"


# ---- publishing


def test_results_are_named_as_the_contract_names_them(place: Place) -> None:
    """Each shard is a file of results; with any errors each has a file of those; nothing else is left."""
    output = place.output()
    output.claim()
    publish(place, output)

    assert place.names() == [".pilotlight/claim", *PUBLISHED]
    assert [place.text(PUBLISHED[number]) for number in range(3)] == ["", "errors 1\n", ""]
    assert [place.text(PUBLISHED[number]) for number in (4, 5, 6)] == [f"results {n}\n" for n in range(3)]
    stats = [ast.literal_eval(line) for line in place.text(PUBLISHED[3]).splitlines()]
    assert stats == [("more", 5), ('It\'s "bad"\n', 1)]


def test_without_errors(place: Place) -> None:
    """There are no files of errors, but an empty one of their statistics."""
    output = place.output()
    output.claim()
    output.publish([sealed(place, 0)], DONE)

    assert place.names() == [
        ".pilotlight/claim",
        "prediction.errors_stats-00000-of-00001",
        "prediction.results-00000-of-00001",
    ]
    assert place.text("prediction.errors_stats-00000-of-00001") == ""


def test_csv_has_its_header_beside_it(place: Place) -> None:
    """The names of the columns, also when the first shard has no rows; names may hold commas."""
    output = place.output(output_format="CSV")
    output.claim()
    header = ("a", "b,c", 'd"e', "f g")
    output.publish([sealed(place, 0), sealed(place, 1, header=header)], DONE)

    assert [name for name in place.names() if "results" in name] == [
        "prediction.results-00000-of-00002.csv",
        "prediction.results-00001-of-00002.csv",
        "prediction.results_header.csv",
    ]
    text = place.text("prediction.results_header.csv")
    assert text == 'a,"b,c","d""e",f g\n'
    assert next(csv.reader([text])) == list(header)


def test_shards_with_other_columns_are_not_published(place: Place) -> None:
    """One header cannot stand for both."""
    output = place.output(output_format="CSV")
    output.claim()
    shards = [sealed(place, 0, header=("a",)), sealed(place, 1, header=("b",))]

    with pytest.raises(InvalidOutputs, match="Use outputDataFormat JSON"):
        output.publish(shards, DONE)
    assert not [name for name in place.names() if name.startswith("prediction")]


@pytest.mark.parametrize("other", [None, "u2"])
def test_a_folder_that_was_taken_over(place: Place, other: str | None) -> None:
    """A job whose claim is gone, or another's, publishes nothing and removes nothing of the other."""
    output = place.output()
    output.claim()
    shards = [sealed(place, 0)]
    FILES.delete(f"{place.root}/.pilotlight/claim")
    if other:
        place.output(other).claim()

    with pytest.raises(FailedPrecondition, match="was taken by another job"):
        output.publish(shards, DONE)
    output.delete_job_files()

    assert not [name for name in place.names() if name.startswith("prediction")]
    assert not other or place.claim()["uid"] == other


# ---- later attempts


def test_an_attempt_after_one_that_died_at_work(place: Place) -> None:
    """With the same plan it goes on with what that one wrote; with another one that goes."""
    first = place.output(attempt=1)
    first.claim()
    folder = first.open_work_folder("plan1").removeprefix(f"{place.root}/")
    piece = f"{folder}/pieces/00000-x.results"
    place.put(piece, "old")

    again = place.output(attempt=2)
    assert again.claim() is None
    assert again.open_work_folder("plan1") == f"{place.root}/{folder}"
    assert place.names() == [".pilotlight/claim", piece]

    later = place.output(attempt=3)
    assert later.claim() is None
    assert later.open_work_folder("plan2") != f"{place.root}/{folder}"
    assert place.names() == [".pilotlight/claim"]
    publish(place, later)
    assert place.names() == [".pilotlight/claim", *PUBLISHED]


class Died(BaseException):
    """The end of a process."""


class Dying(FileStore):
    """Publishes so many files, then dies."""

    def __init__(self, left: int) -> None:
        super().__init__(retry_seconds=10)
        self._calls = iter([True] * left)

    def move(self, source: str, target: str) -> None:
        self._live(target)
        super().move(source, target)

    def write(self, uri: str, data: bytes) -> None:
        self._live(uri)
        super().write(uri, data)

    def _live(self, uri: str) -> None:
        if "/prediction." in uri and not next(self._calls, False):
            raise Died


def test_an_attempt_after_one_that_died_while_publishing(place: Place) -> None:
    """At whichever file it died: what was published goes, and the new attempt publishes all of its own."""
    for left in range(7):
        dying = place.output(attempt=1, files=Dying(left))
        dying.claim()
        with pytest.raises(Died):
            publish(place, dying)
        assert len([name for name in place.names() if name.startswith("prediction.")]) == left

        later = place.output(attempt=2)
        assert later.claim() is None
        assert place.names() == [".pilotlight/claim"]
        publish(place, later)
        assert place.names() == [".pilotlight/claim", *PUBLISHED]
        later.delete_job_files()


@pytest.mark.parametrize(
    "said", [DONE, JobReport(failed=FailureStatus("INVALID_ARGUMENT", "All failed.", 0, 6))]
)
def test_an_attempt_after_the_end(place: Place, said: JobReport) -> None:
    """A server that died before it knew is told how the job ended, and nothing is done again."""
    output = place.output()
    output.claim()
    publish(place, output, said)
    before = place.names()

    # By an attempt that died just before its end.
    place.put(".pilotlight/u1/plan/left")
    assert (
        output.find_earlier_end()
        == place.output(attempt=2).find_earlier_end()
        == place.output(attempt=2).claim()
        == said
    )
    assert place.output("u2").find_earlier_end() is None
    assert place.names() == before


def test_cleaning_leaves_nothing_of_the_job(place: Place) -> None:
    """Before anything, at work, and when it has published: what is not the job's stays."""
    place.put("notes.txt")
    output = place.output()
    output.delete_job_files()
    assert place.names() == ["notes.txt"]

    output.claim()
    sealed(place, 0)
    output.delete_job_files()
    assert place.names() == ["notes.txt"]

    output.claim()
    publish(place, output)
    output.delete_job_files()
    assert place.names() == ["notes.txt"]
    with pytest.raises(NotFound):
        place.claim()


def test_a_slash_at_the_end_is_no_matter(place: Place) -> None:
    """The output path may have one."""
    output = Place(f"{place.root}/").output()
    output.claim()
    output.publish([sealed(place, 0)], DONE)

    assert "prediction.results-00000-of-00001" in place.names()


def test_what_an_attempt_that_was_killed_had_written_of_its_claim_goes(tmp_path: Path) -> None:
    place, partial = Place(str(tmp_path)), tmp_path / ".pilotlight" / ".claim.0a.part"
    partial.parent.mkdir()

    partial.touch()
    place.output().delete_job_files()
    assert not partial.exists()

    partial.touch()
    place.output().claim()
    assert not partial.exists()

    partial.touch()
    place.output("u2").delete_job_files()
    assert partial.exists()  # it may be u1's, which has the folder
    place.output().delete_job_files()
    assert list(partial.parent.iterdir()) == []
