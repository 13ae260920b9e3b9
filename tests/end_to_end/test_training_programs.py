"""Programs that do all they can to harm the machine: their job ends with the reason, and serving goes on."""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.end_to_end import models
from tests.end_to_end.jobs import finished, get, submit
from tests.end_to_end.training_jobs import PARENT, list_log, start_pilot, texts, training_job, write_wheel
from tests.server import Server, running_server, until

VERSION = f"{PARENT}/models/beside/versions/v1"
DISK_BYTES = 96 << 20


def has_small_disks() -> bool:
    """Whether this user may mount a file system in a name space of its own."""
    if shutil.which("unshare") is None:
        return False
    command = ["unshare", "-rm", "mount", "-t", "tmpfs", "none", "/mnt"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@contextmanager
def server_on_a_small_disk(root: Path, *flags: str) -> Iterator[Server]:
    """Its state folder, and with it the working folders of programs, is on a file system of its own."""
    if not has_small_disks():
        pytest.skip("needs unshare, and the right to mount")
    state = root / "state"
    state.mkdir()
    script = f'mount -t tmpfs -o size={DISK_BYTES} none "$0" && exec "$@"'
    prefix = ("unshare", "-rm", "sh", "-c", script, str(state))
    with running_server(state, *flags, prefix=prefix) as server:
        yield server


def deploy_forest(server: Server, folder: Path) -> None:
    models.write_sklearn(folder)
    server.create_model(f"{PARENT}/models/beside")
    server.create_version(VERSION, deploymentUri=str(folder))


@contextmanager
def predicting(server: Server) -> Iterator[Counter[int]]:
    """Predicts all the time; counts the statuses."""
    (row, *_) = models.data()[0].tolist()
    found: Counter[int] = Counter()
    over = threading.Event()

    def predict() -> None:
        while not over.wait(0.02):
            found[server.predict(VERSION, [row]).status] += 1

    thread = threading.Thread(target=predict)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()


# The last of it ends the job: more memory than it may have.
HARMFUL = """
    import os, pathlib, signal, sys, time
    out = pathlib.Path(sys.argv[-1])
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            (out / "daemon").write_text(str(os.getpid()))
            time.sleep(600)
        os._exit(0)
    os.wait()
    try:
        with open("filling", "wb") as file:
            while True:
                file.write(bytes(1 << 20))
    except OSError as error:
        os.truncate("filling", 0)  # else there is no room for the log
        print(error, flush=True)
    begin = time.monotonic()
    for number in range(20_000):
        print("line", number)
        if number % 100 == 0:
            time.sleep(max(0.0, begin + number / 10_000 - time.monotonic()))
    taken = []
    while True:
        taken.append(os.urandom(1 << 20) * 16)
        time.sleep(0.02)
"""


def test_a_program_that_does_all_of_it(tmp_path: Path) -> None:
    """A daemon, no heed to SIGTERM, a full disk, 10,000 lines a second, more memory than it may take."""
    wheel = write_wheel(tmp_path, HARMFUL)
    job = training_job("harmful", wheel, jobDir=str(tmp_path / "out"))
    with server_on_a_small_disk(tmp_path, "--training-log-bytes", "8388608") as server:
        deploy_forest(server, tmp_path / "model")
        with predicting(server) as statuses:
            name = submit(server, {**job, "trainingOptions": {"memoryBytes": str(300 << 20)}})
            ended = finished(server, name)

        assert ended["state"] == "FAILED"
        assert "MiB of memory, and may take 300 MiB" in ended["errorMessage"]
        assert "No space left on device" in "\n".join(texts(list_log(server, "harmful")))
        daemon = int((tmp_path / "out" / "daemon").read_text())
        until(lambda: daemon not in server.processes(), "the daemon is gone")
        assert statuses.keys() == {200}
        assert server.stop() == 0


FILLING = """
    import os, sys
    print("filling", flush=True)
    if sys.argv[1] == "supervisor":
        os.setsid()
    with open("filling", "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 16))
        except OSError:
            try:
                while True:
                    file.write(bytes(1))
            except OSError:
                if sys.argv[1] == "supervisor":
                    os.kill(os.getppid(), 9)
                    if os.environ["PILOTLIGHT_ATTEMPT"] == "1":
                        import time; time.sleep(600)
                raise
"""


@pytest.mark.parametrize("who", [pytest.param("program", marks=pytest.mark.soak), "supervisor"])
def test_a_program_that_leaves_no_byte(tmp_path: Path, who: str) -> None:
    """Its job ends all the same, also when it kills its supervisor, and there is room again."""
    job = training_job("filling", write_wheel(tmp_path, FILLING), args=[who])
    with server_on_a_small_disk(tmp_path) as server:
        deploy_forest(server, tmp_path / "model")
        with predicting(server) as statuses:
            ended = finished(server, submit(server, job))

        assert ended["state"] == "FAILED"
        if who == "program":
            assert "No space left on device" in ended["errorMessage"]
        assert statuses.keys() == {200}
        # The server takes changes again.
        server.create_model(f"{PARENT}/models/after")
        assert get(server, f"{PARENT}/jobs/filling")["state"] == "FAILED"
        assert server.stop() == 0


DETACHED = """
    import os, pathlib, sys, time
    folder = pathlib.Path(sys.argv[-1])
    if os.environ["PILOTLIGHT_ATTEMPT"] == "2":
        print("again")
        sys.exit()
    supervisor = os.getppid()
    if not os.fork():
        os.setsid()
        if os.fork():
            os._exit(0)
        (folder / "daemon").write_text(str(os.getpid()))
        time.sleep(600)
    while not (folder / "daemon").exists():
        time.sleep(0.01)
    os.kill(supervisor, 9)
    time.sleep(600)
"""


@pytest.mark.parametrize("is_forked", [True, pytest.param(False, marks=pytest.mark.soak)])
def test_a_killed_supervisor_leaves_no_daemon(tmp_path: Path, is_forked: bool) -> None:
    """What its program had detached before is gone when the next attempt has ended."""
    wheel = write_wheel(tmp_path, DETACHED)
    with running_server(tmp_path / "state") as server:
        if is_forked:
            start_pilot(server, write_wheel(tmp_path / "other", ""))
        ended = finished(
            server, submit(server, training_job("detached", wheel, jobDir=str(tmp_path / "out")))
        )

        assert ended["state"] == "SUCCEEDED"
        daemon = (tmp_path / "out" / "daemon").read_text()
        until(lambda: not Path("/proc", daemon).exists(), "the daemon is gone")
        assert server.stop() == 0
