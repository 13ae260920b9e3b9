from __future__ import annotations

from serving.artifacts.child_environment import sanitize_environment

SERVER = {
    "PATH": "/bin",
    "LC_ALL": "C.UTF-8",
    "PYTHONPATH": "/src",
    "OMP_NUM_THREADS": "1",
    "GOOGLE_APPLICATION_CREDENTIALS": "/key.json",
    "STORAGE_EMULATOR_HOST": "http://localhost:9023",
    "HTTPS_PROXY": "http://user:password@proxy",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "OTEL_EXPORTER_OTLP_HEADERS": "authorization=secret",
    "DATABASE_URL": "secret",
    "PATHOLOGICAL": "secret",
    "HOMEWORK": "secret",
    "MINE": "given",
}


def test_models_see_of_the_environment_only_what_is_harmless() -> None:
    """And what they are given by name; a name is not a beginning of names."""
    harmless = {"PATH", "LC_ALL", "PYTHONPATH", "OMP_NUM_THREADS"}

    assert sanitize_environment(SERVER).keys() == harmless
    assert sanitize_environment(SERVER, "MINE, MISSING,").keys() == harmless | {"MINE"}
    assert sanitize_environment(SERVER, "HOMEWOR").keys() == harmless


def test_jobs_see_what_it_takes_to_reach_storage() -> None:
    """Which is credentials, too."""
    more = sanitize_environment(SERVER, storage=True).keys() - sanitize_environment(SERVER).keys()

    assert more == {"GOOGLE_APPLICATION_CREDENTIALS", "STORAGE_EMULATOR_HOST", "HTTPS_PROXY"}
