"""Why workers of an environment that the options name could not be started."""

from __future__ import annotations

import json
import re

# Java's words, from Beam's factories of environments.
_PROCESS_DIED = re.compile(r"Process died with exit code (\d+)")
_NOBODY_ANSWERS = ("Connection refused", "io exception", "UnknownHostException", "Unable to resolve host")


def explain_start_failure(kind: str | None, config: str | None, error: str) -> str:
    """A sentence for a failure of the workers' start, "" if the error is another one.

    `kind` and `config` are Beam's --environment_type and --environment_config.
    """
    if kind == "PROCESS" and (died := _PROCESS_DIED.search(error)):
        return (
            f"The worker could not be started: the program of --environment_config ({config}) ended with "
            f"exit code {died[1]}. What it said is in the log of the TaskManager or executor that started it."
        )
    if kind == "EXTERNAL" and any(words in error for words in _NOBODY_ANSWERS):
        return (
            f"The worker could not be started: no worker pool answers at {_find_pool(config)} "
            "(--environment_config) on "
            "the cluster's machines. Run `python -m batch.pool` beside each TaskManager or executor."
        )
    return ""


def _find_pool(config: str | None) -> str:
    """The address in --environment_config, without the token that may be beside it."""
    try:
        return str(json.loads(config or "")["url"])
    except (ValueError, KeyError, TypeError):
        return config or ""
