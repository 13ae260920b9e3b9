"""The sentence of the exception that a trace of Java or Python began with."""

from __future__ import annotations

import re

# A frame of Java, with or without its indent and "at"; Beam cuts those off.
_FRAME = re.compile(
    r"(at )?([\w.-]+(@[\w.-]+)?/+)*[\w.$<>/-]+\((\w[\w.]*(:\d+)?|Native Method|Unknown Source)\)"
)
_ELLIPSIS = re.compile(r"\.\.\. \d+ (more|common frames omitted)|Driver stacktrace:")
_HEAD = re.compile(r"([A-Za-z_][\w$]*\.)*[A-Z][\w$]*(Exception|Error|Failure|Throwable)(: .*)?")
_PYTHON_TRACE = "Traceback (most recent call last):"
# What Beam's Python half puts before it.
_FAILED_IN_STATE = re.compile(r"^Pipeline \S+ failed in state \w+: ")
# Characters of a cause that are shown: some exceptions have a whole plan or trace as their message.
_LONGEST = 1000
# Java's words for two sides that were compiled with different versions of a class, or of which one has none.
_CONFLICT = re.compile(
    r"InvalidClassException: org\.apache\.(?P<engine>flink|spark|beam)\.[^;\n]*; local class incompatible"
    r"|(NoSuchMethodError|NoClassDefFoundError|ClassNotFoundException): "
    r".*?org[./]apache[./](?P<other>flink|spark)[\w./$]*"
)

# Spark's words, of a job server that has not ended its last job yet too.
_BUSY = "Only one SparkContext should be running in this JVM"


def explain_version_conflict(trace: str) -> str:
    """A sentence, if the job server and the cluster have different versions; else ""."""
    found = _CONFLICT.search(trace)
    if found is None:
        return ""
    name = (found["engine"] or found["other"]).capitalize()
    return (
        f"The job server and the cluster have different versions of {name} ({found[0]}). Both must be the "
        "same: take the job server that was built for the cluster's version, see docs/batch.md."
    )


def explain_busy_job_server(trace: str) -> str:
    """A sentence, if a job server of Spark has a job already; else ""."""
    if _BUSY not in trace:
        return ""
    return (
        "The job server has another job, and Spark has one at a time in each. Leave out --job_endpoint, so "
        "that each job starts a job server of its own, or run one job at a time (--jobs 1)."
    )


def find_root_cause(trace: str) -> str:
    """Its exception and message on one line, "" if there is nothing in the trace but frames.

    The root of a Java trace is its last "Caused by"; an exception of Python within it, which a worker has
    sent, is the root of all.
    """
    lines = [line.strip() for line in _FAILED_IN_STATE.sub("", trace).splitlines()]
    if _PYTHON_TRACE in trace:
        last = max(place for place, line in enumerate(lines) if line.endswith(_PYTHON_TRACE))
        lines = lines[last + 1 :]
        heads = [place for place, line in enumerate(lines) if _HEAD.fullmatch(line)]
    else:
        causes = [place for place, line in enumerate(lines) if line.startswith("Caused by: ")]
        heads = causes[-1:] or [place for place, line in enumerate(lines) if _HEAD.fullmatch(line)]
    found: list[str] = []
    for line in lines[heads[0] :] if heads else lines:
        if _FRAME.fullmatch(line) or _ELLIPSIS.fullmatch(line):
            if found:
                break
            continue
        if line:
            found.append(line.removeprefix("Caused by: "))
    return " ".join(found)[:_LONGEST]
