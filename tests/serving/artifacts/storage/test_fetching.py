"""What a fetched artifact has, from a bucket and from a folder, and why one cannot be fetched."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from serving.artifacts.storage import MAX_FILES, ArtifactFetcher, FetchResult, emulator_host
from serving.errors import InvalidArgument, NotFound, PermissionDenied, ServingError, Unavailable
from tests.emulator import Answer, Emulator, Front
from tests.serving.artifacts.storage.artifacts import FETCH, ROOMY, entries, make, tree

# ---- Cloud Storage


def test_a_bucket_folder_arrives_complete(
    emulator: Emulator, storage: ArtifactFetcher, tmp_path: Path
) -> None:
    """Everything below the folder arrives, with or without a trailing slash, and nothing of its namesakes."""
    uri = f"gs://{emulator.bucket()}/deep/model"
    files = {"saved_model.pb": b"graph", "variables/variables.data": b"\0" * 100_000, "assets/empty": b""}
    for name, data in files.items():
        emulator.put(f"{uri}/{name}", data)
    emulator.put(f"{uri}2/saved_model.pb", b"another")
    emulator.put(f"{uri}.txt", b"another")
    emulator.put(f"{uri}/variables/")

    fetched = storage.fetch(uri, tmp_path / "a")
    slashed = storage.fetch(f"{uri}/", tmp_path / "b")

    assert tree(tmp_path / "a") == tree(tmp_path / "b") == files
    assert fetched == slashed == FetchResult(3, 100_005, fetched.digest)


def test_a_whole_bucket_may_be_a_model(emulator: Emulator, storage: ArtifactFetcher, tmp_path: Path) -> None:
    """A URI of a bucket alone means everything in it."""
    bucket = emulator.bucket()
    emulator.put(f"gs://{bucket}/model.pkl", b"1")

    storage.fetch(f"gs://{bucket}", tmp_path / "model")

    assert tree(tmp_path / "model") == {"model.pkl": b"1"}


def test_what_was_fetched_never_changes(emulator: Emulator, storage: ArtifactFetcher, tmp_path: Path) -> None:
    """A replaced object is fetched anew, and leaves alone what was fetched before."""
    uri = f"gs://{emulator.bucket()}/model"
    emulator.put(f"{uri}/model.pkl", b"old")
    old = storage.fetch(uri, tmp_path / "old")

    emulator.put(f"{uri}/model.pkl", b"new")
    new = storage.fetch(uri, tmp_path / "new")

    assert tree(tmp_path / "old") == {"model.pkl": b"old"}
    assert tree(tmp_path / "new") == {"model.pkl": b"new"}
    assert old.digest != new.digest


def test_the_second_fetch_downloads_nothing(
    emulator: Emulator, front: Front, storage: ArtifactFetcher, tmp_path: Path
) -> None:
    """A folder in the cache is copied from there."""
    uri = f"gs://{emulator.bucket()}/model"
    emulator.put(f"{uri}/model.pkl", b"1")

    storage.fetch(uri, tmp_path / "a")
    storage.fetch(uri, tmp_path / "b")

    assert len(front.downloads()) == 1
    assert tree(tmp_path / "a") == tree(tmp_path / "b") == {"model.pkl": b"1"}


def test_compressed_objects_are_unpacked(
    emulator: Emulator, storage: ArtifactFetcher, tmp_path: Path
) -> None:
    """An object stored with `Content-Encoding: gzip` arrives as what was compressed."""
    uri = f"gs://{emulator.bucket()}"
    emulator.put(f"{uri}/good/model.json", gzip.compress(b"{}"), encoding="gzip")
    emulator.put(f"{uri}/bad/model.json", b"{}", encoding="gzip")

    storage.fetch(f"{uri}/good", tmp_path / "good")

    assert tree(tmp_path / "good") == {"model.json": b"{}"}
    with pytest.raises(InvalidArgument, match=r"bad/model\.json is marked .* but is not gzip"):
        storage.fetch(f"{uri}/bad", tmp_path / "bad")


@pytest.mark.parametrize("name", ["../evil", "a/../../evil", "/evil", "a//evil", "./evil"])
def test_names_that_lead_out_of_the_folder_are_refused(
    emulator: Emulator, front: Front, storage: ArtifactFetcher, tmp_path: Path, name: str
) -> None:
    """No object can be written elsewhere than below the destination, whatever Cloud Storage calls it."""
    uri = f"gs://{emulator.bucket()}/model"
    emulator.put(f"{uri}/harmless", b"1")
    front.replace(b"model/harmless", f"model/{name}".encode())

    with pytest.raises(InvalidArgument, match="lead out of the model's folder"):
        storage.fetch(uri, tmp_path / "model")


def test_an_object_that_is_also_a_folder_is_refused(
    emulator: Emulator, front: Front, storage: ArtifactFetcher, tmp_path: Path
) -> None:
    """Buckets may hold `a` and `a/b`, file systems may not: the error says which name it is."""
    uri = f"gs://{emulator.bucket()}/model"
    emulator.put(f"{uri}/a", b"1")
    emulator.put(f"{uri}/harmless", b"1")
    front.replace(b"model/harmless", b"model/a/b")

    with pytest.raises(InvalidArgument, match="'a' both as a file and as a folder"):
        storage.fetch(uri, tmp_path / "model")


def test_missing_things_are_named(emulator: Emulator, storage: ArtifactFetcher, tmp_path: Path) -> None:
    """No bucket, nothing below the folder, and an object instead of a folder are three different errors."""
    bucket, empty = emulator.bucket(), emulator.bucket()
    emulator.put(f"gs://{bucket}/dir/model.pkl", b"1")
    target = tmp_path / "model"

    with pytest.raises(NotFound, match="There is no bucket no-such-bucket"):
        storage.fetch("gs://no-such-bucket/model", target)
    with pytest.raises(NotFound, match=f"no object below gs://{bucket}/nothing/. Check the name, or upload"):
        storage.fetch(f"gs://{bucket}/nothing", target)
    with pytest.raises(NotFound, match=f"no object below gs://{empty}/. Check the name, or upload"):
        storage.fetch(f"gs://{empty}", target)
    with pytest.raises(
        InvalidArgument, match=f"single object, not a folder. Give its folder: gs://{bucket}/dir$"
    ):
        storage.fetch(f"gs://{bucket}/dir/model.pkl", target)
    assert not target.exists()


@pytest.mark.parametrize(
    "uri", ["", "gs://", "gs:///model", "s3://bucket/model", "file://host/model", "a\0b"]
)
def test_other_uris_are_refused(storage: ArtifactFetcher, tmp_path: Path, uri: str) -> None:
    """A URI that names no bucket, or has a scheme we do not serve, is an error that says what is expected."""
    with pytest.raises(InvalidArgument, match="expected gs://bucket/folder, file:///folder or a path"):
        storage.fetch(uri, tmp_path / "model")


# ---- failures on the way


@pytest.mark.parametrize("status", [429, 500, 503])
@pytest.mark.parametrize("where", ["prefix=", "alt=media"])
def test_transient_failures_are_retried(
    emulator: Emulator, front: Front, storage: ArtifactFetcher, tmp_path: Path, status: int, where: str
) -> None:
    """Two failures in a row, of the listing or of a download, do not fail the fetch."""
    uri = f"gs://{emulator.bucket()}/model"
    emulator.put(f"{uri}/model.pkl", b"1")
    front.fail(status, times=2, where=where)

    storage.fetch(uri, tmp_path / "model")

    assert len([path for path in front.paths if where in path]) == 3


@pytest.mark.parametrize("where", ["prefix=", "alt=media"])
def test_retries_end(emulator: Emulator, front: Front, tmp_path: Path, where: str) -> None:
    """When Cloud Storage fails for longer than our patience, the error is Unavailable and says how long."""
    uri = f"gs://{emulator.bucket()}/model"
    for number in range(20):
        emulator.put(f"{uri}/{number}", b"1")
    front.fail(503, times=1000, where=where)
    began = time.monotonic()

    with pytest.raises(Unavailable, match=r"kept failing on gs://\S+ for 0.5 s: HTTP status 503"):
        ArtifactFetcher(tmp_path / "cache", ROOMY, retry_seconds=0.5).fetch(uri, tmp_path / "model")

    assert time.monotonic() - began < 30
    assert not (tmp_path / "model").exists()


def test_an_unreachable_storage_is_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refused connection is retried, then Unavailable."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "127.0.0.1:1")

    with pytest.raises(Unavailable, match="kept failing"):
        ArtifactFetcher(tmp_path / "cache", ROOMY, retry_seconds=0.3).fetch(
            "gs://bucket/model", tmp_path / "model"
        )


def test_a_download_that_breaks_off_is_resumed(
    emulator: Emulator, front: Front, storage: ArtifactFetcher, tmp_path: Path
) -> None:
    """A connection closed half-way costs the rest of the file only, and the whole is checked."""
    uri = f"gs://{emulator.bucket()}/model"
    content = os.urandom(300_000)
    emulator.put(f"{uri}/model.pkl", content)

    def answer(path: str, forward: Callable[[], Answer]) -> Answer:
        whole = forward()
        half = len(whole.body) // 2 if len(front.downloads()) == 1 else len(whole.body)
        return Answer(whole.status, whole.headers, whole.body[:half])

    front.answer = answer
    storage.fetch(uri, tmp_path / "model")

    assert tree(tmp_path / "model") == {"model.pkl": content}
    assert len(front.downloads()) == 2


def test_damage_on_the_way_is_noticed(
    emulator: Emulator, front: Front, storage: ArtifactFetcher, tmp_path: Path
) -> None:
    """A download whose CRC32C is not the listed one is refused and leaves nothing behind."""
    uri = f"gs://{emulator.bucket()}/model"
    emulator.put(f"{uri}/model.pkl", b"healthy")
    front.replace(b"healthy", b"hEalthy")

    with pytest.raises(Unavailable, match=r"model/model\.pkl arrived damaged: its CRC32C is"):
        storage.fetch(uri, tmp_path / "model")
    assert not (tmp_path / "model").exists()
    assert not entries(tmp_path)


def test_an_object_removed_meanwhile_is_unavailable(
    emulator: Emulator, front: Front, storage: ArtifactFetcher, tmp_path: Path
) -> None:
    """A generation that goes between listing and download makes the caller try again."""
    uri = f"gs://{emulator.bucket()}/model"
    emulator.put(f"{uri}/model.pkl", b"1")
    front.fail(404, times=1, where="alt=media")

    with pytest.raises(Unavailable, match="replaced or removed while it was being copied"):
        storage.fetch(uri, tmp_path / "model")


@pytest.mark.parametrize(
    ("status", "words"), [(401, "needs Google credentials"), (403, "storage.objectViewer")]
)
def test_a_refusal_is_permission_denied_at_once(
    emulator: Emulator, front: Front, storage: ArtifactFetcher, tmp_path: Path, status: int, words: str
) -> None:
    """A 401 or 403 is not retried, and the error says what is missing."""
    front.fail(status, times=1000)

    with pytest.raises(PermissionDenied, match=words):
        storage.fetch(f"gs://{emulator.bucket()}/model", tmp_path / "model")
    assert len(front.paths) == 1


def test_an_impossible_bucket_name_is_invalid(
    emulator: Emulator, front: Front, storage: ArtifactFetcher
) -> None:
    """What Cloud Storage calls a bad request is an invalid argument of ours."""
    front.fail(400, times=1)

    with pytest.raises(InvalidArgument, match="does not accept gs://Bad Name/model"):
        storage.fetch("gs://Bad Name/model", Path("never"))


def test_without_credentials_the_error_says_how_to_get_some(tmp_path: Path) -> None:
    """No key, no gcloud, no metadata server: PermissionDenied with both ways to get credentials."""
    hidden = ("STORAGE_EMULATOR_HOST", "GOOGLE_APPLICATION_CREDENTIALS")
    bare = {name: value for name, value in os.environ.items() if name not in hidden}
    bare |= {"HOME": str(tmp_path), "CLOUDSDK_CONFIG": str(tmp_path), "NO_GCE_CHECK": "true"}
    command = [sys.executable, "-c", FETCH, str(tmp_path / "cache"), "gs://b/model", str(tmp_path / "model")]

    done = subprocess.run(command, env=bare, capture_output=True, text=True, check=False)

    assert "serving.errors.PermissionDenied" in done.stderr
    assert "GOOGLE_APPLICATION_CREDENTIALS" in done.stderr
    assert "gcloud auth application-default login" in done.stderr


def test_an_emulator_needs_no_credentials(emulator: Emulator, tmp_path: Path) -> None:
    """With STORAGE_EMULATOR_HOST set nothing looks for credentials or a metadata server, so it is fast."""
    uri = f"gs://{emulator.bucket()}/model"
    emulator.put(f"{uri}/model.pkl", b"1")
    # Any look-up of credentials would fail on this.
    bare = dict(os.environ, HOME=str(tmp_path), GOOGLE_APPLICATION_CREDENTIALS="/nowhere")
    command = [sys.executable, "-c", FETCH, str(tmp_path / "cache"), uri, str(tmp_path / "model")]
    began = time.monotonic()

    subprocess.run(command, env=bare, check=True, stdout=subprocess.DEVNULL)

    assert time.monotonic() - began < 30


@pytest.mark.parametrize(
    ("value", "address"), [("", ""), ("localhost:9", "http://localhost:9"), ("http://h:1", "http://h:1")]
)
def test_the_emulator_may_be_named_without_scheme(
    monkeypatch: pytest.MonkeyPatch, value: str, address: str
) -> None:
    """Both customs of writing STORAGE_EMULATOR_HOST are understood."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", value)

    assert emulator_host() == address


# ---- local folders


def test_local_folders_are_copied(storage: ArtifactFetcher, tmp_path: Path) -> None:
    """A path and its file:// form give the same files, which later changes do not reach."""
    source = make(tmp_path / "my model", {"model.pkl": b"old", "sub/x": b"x"})

    plain = storage.fetch(str(source), tmp_path / "a")
    uri = storage.fetch(source.as_uri() + "/", tmp_path / "b")
    (source / "model.pkl").write_bytes(b"new")
    changed = storage.fetch(str(source), tmp_path / "c")

    assert plain == uri == FetchResult(2, 4, plain.digest)
    assert changed.digest != plain.digest
    assert tree(tmp_path / "a") == tree(tmp_path / "b") == {"model.pkl": b"old", "sub/x": b"x"}
    assert tree(tmp_path / "c") == {"model.pkl": b"new", "sub/x": b"x"}


def test_a_relative_path_starts_at_the_working_directory(
    storage: ArtifactFetcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plain path may be relative."""
    make(tmp_path / "model", {"model.pkl": b"1"})
    monkeypatch.chdir(tmp_path)

    storage.fetch("model", tmp_path / "copy")

    assert tree(tmp_path / "copy") == {"model.pkl": b"1"}


def test_symbolic_links_are_followed(storage: ArtifactFetcher, tmp_path: Path) -> None:
    """Links to files and folders arrive as what they point to, and are not links any more."""
    make(tmp_path / "blobs", {"123": b"weights", "vars/a": b"a"})
    model = make(tmp_path / "model", {"config": b"c"})
    (model / "weights").symlink_to("../blobs/123")
    (model / "variables").symlink_to(tmp_path / "blobs/vars")
    (tmp_path / "latest").symlink_to(model)

    storage.fetch(str(tmp_path / "latest"), tmp_path / "copy")

    assert tree(tmp_path / "copy") == {"config": b"c", "weights": b"weights", "variables/a": b"a"}
    assert not (tmp_path / "copy/weights").is_symlink()


@pytest.mark.parametrize("link", ["gone", "."])
def test_links_that_lead_nowhere_are_named(storage: ArtifactFetcher, tmp_path: Path, link: str) -> None:
    """A dangling link and a link to a folder around it are errors that name the link."""
    model = make(tmp_path / "model", {"model.pkl": b"1"})
    (model / "link").symlink_to(link)

    with pytest.raises(InvalidArgument, match=r"model/link is a symbolic link to "):
        storage.fetch(str(model), tmp_path / "copy")


def test_a_pipe_is_not_a_model_file(storage: ArtifactFetcher, tmp_path: Path) -> None:
    """What is not a regular file is refused; reading it could wait for ever."""
    model = make(tmp_path / "model", {"model.pkl": b"1"})
    os.mkfifo(model / "pipe")

    with pytest.raises(InvalidArgument, match="pipe is not a regular file"):
        storage.fetch(str(model), tmp_path / "copy")


def test_local_folders_that_are_none(storage: ArtifactFetcher, tmp_path: Path) -> None:
    """A missing folder, an empty one and a file are three different errors."""
    (tmp_path / "empty").mkdir()
    make(tmp_path, {"model.pkl": b"1"})

    with pytest.raises(NotFound, match=r"There is no folder .*/missing\. .* of its own machine only"):
        storage.fetch(str(tmp_path / "missing"), tmp_path / "copy")
    with pytest.raises(NotFound, match=r"empty is empty\. Put the model's files there"):
        storage.fetch(str(tmp_path / "empty"), tmp_path / "copy")
    with pytest.raises(InvalidArgument, match=f"single file, not a folder. Give its folder: {tmp_path}$"):
        storage.fetch(str(tmp_path / "model.pkl"), tmp_path / "copy")


def test_too_many_files(storage: ArtifactFetcher, tmp_path: Path) -> None:
    """More files than a model may have are refused, with the limit and, within reason, their number."""
    model = make(tmp_path / "model", {str(number): b"" for number in range(MAX_FILES + 1)})
    (tmp_path / "lake").mkdir()
    for number in range(12):
        (tmp_path / "lake" / str(number)).symlink_to(model)

    with pytest.raises(InvalidArgument, match="model holds 1001 files; a model may have 1000"):
        storage.fetch(str(model), tmp_path / "copy")
    with pytest.raises(InvalidArgument, match="lake holds at least 10000 files; a model may have 1000"):
        storage.fetch(str(tmp_path / "lake"), tmp_path / "copy")


def test_the_destination_must_be_new(storage: ArtifactFetcher, tmp_path: Path) -> None:
    """A fetch never mixes its files with others."""
    source = make(tmp_path / "model", {"model.pkl": b"1"})
    make(tmp_path / "copy", {"other": b"2"})

    with pytest.raises(OSError, match="not empty"):
        storage.fetch(str(source), tmp_path / "copy")
    assert tree(tmp_path / "copy") == {"other": b"2"}


# ---- single files


def test_one_file_can_be_fetched(emulator: Emulator, storage: ArtifactFetcher, tmp_path: Path) -> None:
    """A package archive arrives under its own name, from a bucket or a path."""
    uri = f"gs://{emulator.bucket()}"
    emulator.put(f"{uri}/dir/pkg-0.1.tar.gz", b"gs")
    emulator.put(f"{uri}/top.whl", b"top")
    local = make(tmp_path, {"pkg-0.2.tar.gz": b"local"}) / "pkg-0.2.tar.gz"
    target = tmp_path / "archives"

    fetched = [storage.fetch_file(name, target) for name in (f"{uri}/dir/pkg-0.1.tar.gz", f"{uri}/top.whl")]
    fetched += [storage.fetch_file(local.as_uri(), target)]

    assert fetched == [target / "pkg-0.1.tar.gz", target / "top.whl", target / "pkg-0.2.tar.gz"]
    assert tree(target) == {"pkg-0.1.tar.gz": b"gs", "top.whl": b"top", "pkg-0.2.tar.gz": b"local"}


@pytest.mark.parametrize(
    ("uri", "error", "words"),
    [
        ("gs://{bucket}/missing.whl", NotFound, "There is no object gs://{bucket}/missing.whl"),
        ("gs://no-such-bucket/x.whl", NotFound, "There is no bucket no-such-bucket"),
        ("gs://{bucket}", InvalidArgument, "gs://{bucket}/ is a folder; expected a single file"),
        ("{folder}", InvalidArgument, "is a folder; expected a single file"),
        ("{folder}/missing", NotFound, "There is no file {folder}/missing. Check the path; a server"),
    ],
)
def test_one_file_that_is_none(
    emulator: Emulator,
    storage: ArtifactFetcher,
    tmp_path: Path,
    uri: str,
    error: type[ServingError],
    words: str,
) -> None:
    """Missing files and folders are named."""
    bucket = emulator.bucket()
    names = {"bucket": bucket, "folder": str(tmp_path)}

    with pytest.raises(error, match=words.format(**names)):
        storage.fetch_file(uri.format(**names), tmp_path / "archives")


def test_one_file_stays_in_its_folder(front: Front, storage: ArtifactFetcher, tmp_path: Path) -> None:
    """An object named like the folder above cannot be fetched."""
    item = {"name": "dir/..", "size": "1", "generation": "1", "crc32c": "AAAAAA=="}
    front.answer = lambda *_: Answer(200, [("Content-Type", "application/json")], json.dumps(item).encode())

    with pytest.raises(InvalidArgument, match=r"'\.\.', whose name would lead out"):
        storage.fetch_file("gs://bucket/dir/..", tmp_path / "archives")


# ---- imports


def test_local_folders_need_no_storage_client(tmp_path: Path) -> None:
    """google.cloud.storage is imported when a gs:// URI is touched, not before."""
    make(tmp_path / "model", {"model.pkl": b"1"})
    script = FETCH + "assert not {'google.cloud.storage', 'google.auth', 'requests'} & set(sys.modules)"

    subprocess.run(
        [
            sys.executable,
            "-c",
            script,
            str(tmp_path / "cache"),
            str(tmp_path / "model"),
            str(tmp_path / "copy"),
        ],
        check=True,
        stdout=subprocess.DEVNULL,
    )
