"""What stands for `gcloud` and `gsutil` where samples of Google run: `pilotlight`, and the emulator.

`python commands.py gcloud ai-platform predict ...` runs `pilotlight predict ...`: the words `ai-platform` or
`ml-engine`, `beta` and `alpha` are left out, all else is as it was. Each such command and its exit status is
added to the file in `SAMPLES_LOG`.
"""

from __future__ import annotations

import fnmatch
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_LEFT_OUT = {"alpha", "beta", "ai-platform", "ml-engine"}


def gcloud(words: list[str]) -> int:
    """Run what is a command of AI Platform; settings of gcloud itself are known to the environment."""
    if not _LEFT_OUT & set(words[:4]):
        return _answer(words)
    kept = [word for word in words if word not in _LEFT_OUT]
    if kept[:2] == ["local", "train"]:
        return _train(kept[2:])
    status = _run_pilotlight(kept)
    with Path(os.environ["SAMPLES_LOG"]).open("a") as log:
        log.write(json.dumps({"command": kept, "status": status}) + "\n")
    return status


def _run_pilotlight(words: list[str]) -> int:
    from serving.cli import main

    sys.argv = ["pilotlight", *words]
    try:
        main()
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def _answer(words: list[str]) -> int:
    if words[:2] == ["auth", "print-access-token"]:
        print("no-token")
    elif "project" in words or "value(core.project)" in words:
        print(os.environ["PILOTLIGHT_PROJECT"])
    return 0


def _train(words: list[str]) -> int:
    """What `gcloud ai-platform local train` did: run the module, in the folder around its package."""
    ours, theirs = (
        (words[: words.index("--")], words[words.index("--") + 1 :]) if "--" in words else (words, [])
    )
    options = dict(_options(ours))
    folder = Path(options["--package-path"]).resolve().parent
    directory = ["--job-dir", options["--job-dir"]] if "--job-dir" in options else []
    python = os.environ["SAMPLES_TRAINER"]
    return subprocess.run(
        [python, "-m", options["--module-name"], *directory, *theirs],
        env={**os.environ, "PYTHONPATH": str(folder)},
        check=False,
    ).returncode


def _options(words: list[str]) -> Iterator[tuple[str, str]]:
    rest = iter(words)
    for word in rest:
        name, equals, value = word.partition("=")
        yield name, value if equals else next(rest)


def gsutil(words: list[str]) -> int:
    """Copy, list and delete objects of the emulator."""
    from google.auth.credentials import AnonymousCredentials
    from google.cloud.storage import Client

    credentials = AnonymousCredentials()  # type: ignore[no-untyped-call]
    endpoint = {"api_endpoint": os.environ["STORAGE_EMULATOR_HOST"]}
    client = Client(project="samples", credentials=credentials, client_options=endpoint)
    verb, *paths = [word for word in words if not word.startswith("-") and word != os.environ.get("REGION")]
    if verb == "mb":
        client.create_bucket(paths[-1].removeprefix("gs://"))
    elif verb == "cp":
        _copy(client, paths[:-1], paths[-1])
    elif verb == "ls":
        return _list(client, paths[0])
    elif verb == "rm":
        for blob in list(_blobs(client, paths[0])):
            blob.delete()
    else:
        sys.exit(f"gsutil {verb} is not known here")
    return 0


def _split(uri: str) -> tuple[str, str]:
    bucket, _, name = uri.removeprefix("gs://").partition("/")
    return bucket, name


def _blobs(client: Any, uri: str) -> Iterator[Any]:
    bucket, name = _split(uri)
    prefix = name.partition("*")[0]
    for blob in client.list_blobs(bucket, prefix=prefix):
        if "*" not in name or fnmatch.fnmatch(blob.name, name):
            yield blob


def _copy(client: Any, sources: list[str], target: str) -> None:
    for source in sources:
        if source.startswith("gs://"):
            for blob in _blobs(client, source):
                path = Path(target)
                path = path / Path(blob.name).name if path.is_dir() else path
                path.parent.mkdir(parents=True, exist_ok=True)
                blob.download_to_filename(str(path))
            continue
        bucket, name = _split(target)
        files = (
            [file for file in Path(source).rglob("*") if file.is_file()]
            if Path(source).is_dir()
            else [Path(source)]
        )
        for file in files:
            inside = file.relative_to(source).as_posix() if Path(source).is_dir() else file.name
            whole = (
                f"{name.rstrip('/')}/{inside}"
                if Path(source).is_dir() or name.endswith("/") or not name
                else name
            )
            client.bucket(bucket).blob(whole.lstrip("/")).upload_from_filename(str(file))


def _list(client: Any, uri: str) -> int:
    """The names one level below, as gsutil prints them."""
    bucket, name = _split(uri.rstrip("/"))
    prefix = f"{name}/" if name else ""
    found = {
        f"gs://{bucket}/{prefix}{head}{slash}"
        for blob in client.list_blobs(bucket, prefix=prefix)
        for head, slash, _ in [blob.name.removeprefix(prefix).partition("/")]
    }
    print("\n".join(sorted(found)))
    return 0 if found else 1


if __name__ == "__main__":
    sys.exit({"gcloud": gcloud, "gsutil": gsutil}[sys.argv[1]](sys.argv[2:]))
