from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from tests.training.jobs import JobRun, is_alive
from training.messages import ContainerEngine, ContainerProgram, ReplicaEvent, ReplicaGroup, ReplicaRole
from training.replicas.containers import build_command


def build(program: ContainerProgram, **changes: Any) -> list[str]:
    """The words behind the name of the container's supervisor and its arguments."""
    defaults: dict[str, Any] = {
        "environment": {}, "name": "c", "job_dir": "", "memory_bytes": 0, "lifeline": 3,
    }  # fmt: skip
    engine = ContainerEngine("/usr/bin/docker", {})
    return build_command(engine, "sha256:1", program, ("--x", "1"), **defaults | changes)


@pytest.mark.parametrize(
    ("entrypoint", "arguments", "words"),
    [
        ((), (), ["sha256:1", "--x", "1"]),
        ((), ("a", "b"), ["sha256:1", "a", "b"]),
        (("python", "-m"), (), ["--entrypoint", "python", "sha256:1", "-m"]),
        (("python", "-m"), ("a",), ["--entrypoint", "python", "sha256:1", "-m", "a"]),
    ],
)
def test_words_of_the_image_and_the_job(entrypoint: Any, arguments: Any, words: list[str]) -> None:
    """Those of the container's config take the place of the image's and of the job's."""
    assert build(ContainerProgram("i", entrypoint, arguments))[-len(words) :] == words


def test_what_a_container_has(tmp_path: Path) -> None:
    key = tmp_path / "key.json"
    key.touch()
    environment = {"A": "b=c", "GOOGLE_APPLICATION_CREDENTIALS": str(key)}

    command = build(
        ContainerProgram("i"), environment=environment, job_dir="/out", memory_bytes=1024, name="c1"
    )

    text = " ".join(command)
    assert "3 - c1 /usr/bin/docker run --rm --name c1 --pull never --network host" in text
    for part in ("--memory 1024", "--volume /out:/out", f"--volume {key}:{key}:ro", "--env A=b=c"):
        assert part in text


# It starts no container, and never comes back; it knows one image.
HANGING_ENGINE = """#!/bin/sh
trap "" TERM
if [ "$1" = image ]; then echo sha256:1; exit; fi
if [ "$1" = run ]; then echo "about to hang"; fi
while :; do sleep 1; done
"""


def test_an_engine_that_hangs_holds_up_no_end(tmp_path: Path) -> None:
    engine = tmp_path / "docker"
    engine.write_text(HANGING_ENGINE)
    engine.chmod(0o755)
    groups = (ReplicaGroup(ReplicaRole.MASTER, container=ContainerProgram("i")),)
    given = ContainerEngine(str(engine), {"PATH": os.environ["PATH"]})
    with JobRun(tmp_path, "", module="", groups=groups, engine=given, grace_seconds=0.5) as job:
        pid = job.wait_for_replica(ReplicaEvent.STARTED).pid
        while not job.lines():
            time.sleep(0.02)
        begin = time.monotonic()
        job.cancel()
        failed = job.finish().failed

    assert failed is not None
    assert failed.status == "CANCELLED"
    assert time.monotonic() - begin < 60
    assert not is_alive(pid)


def test_a_folder_in_a_bucket_is_not_mounted() -> None:
    assert "--volume" not in build(ContainerProgram("i"), job_dir="gs://b/out")
