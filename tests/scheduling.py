"""Which tests run one after the other in one process, and in what order, when several processes run them."""

from __future__ import annotations

from typing import Any

from xdist.scheduler import LoadScopeScheduling

_END_TO_END, _CLI, _CLUSTER = "tests/end_to_end", "tests/serving/cli", "tests/serving/gateway/cluster"
# Files whose tests share a server that is costly to fill or to start. All other files are apart.
_TOGETHER = {
    f"{folder}/test_{name}.py": folder
    for folder, names in {
        _END_TO_END: ("bad_input", "bad_models", "batch", "client", "fuzz", "refusals"),
        _CLI: ("jobs", "main", "models", "nodes", "predict", "versions", "why"),
        _CLUSTER: ("kill", "postgres_store", "servers"),
    }.items()
    for name in names
}
# What takes long begins first: at the end it would keep one process busy while the others have nothing to do.
_FIRST = (
    "tests/soak/",
    f"{_END_TO_END}/",
    f"{_CLI}/",
    "tests/batch/",
    "tests/loadtests/",
    "tests/fuzz/",
    "tests/serving/transport/http_connection/",
    "tests/serving/test_handshakes.py",
)


def turn(test: str) -> int:
    """When a test is begun, by its id: the lower, the sooner."""
    return next((place for place, folder in enumerate(_FIRST) if test.startswith(folder)), len(_FIRST))


class Scheduling(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """Gives whole files to processes, in the order of the tests."""

    def __init__(self, config: Any, log: Any = None) -> None:
        super().__init__(config, log)
        # xdist would begin with the files of many tests, which are not those that take long.
        config.option.loadscopereorder = False

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return _TOGETHER.get(file, file)
