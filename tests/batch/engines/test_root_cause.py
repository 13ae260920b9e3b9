"""Traces of Java and Python, as job servers send them."""

from __future__ import annotations

import pytest

from batch.engines.engine import PipelineName
from batch.engines.root_cause import explain_busy_job_server, explain_version_conflict, find_root_cause
from batch.engines.spark import SparkEngine

NESTED = """\
java.util.concurrent.ExecutionException: org.apache.flink.client.ProgramInvocationException: Job failed
\tat java.base/java.util.concurrent.CompletableFuture.reportGet(CompletableFuture.java:396)
\tat org.apache.beam.vendor.guava.v32_1_2_jre.com.google.common.util.Task$1.run(X.java:108)
Caused by: org.apache.flink.runtime.JobException: Recovery is suppressed by NoRestartBackoffTimeStrategy
\tat org.apache.flink.runtime.executiongraph.failover.ExecutionFailureHandler.handleFailure(E.java:180)
\t... 4 more
Caused by: java.util.concurrent.TimeoutException: Heartbeat of TaskManager with id tm1 timed out.
\tat org.apache.flink.runtime.jobmaster.JobMaster$TaskManagerHeartbeatListener.notify(JobMaster.java:1512)
\t... 31 common frames omitted
"""
# Beam cuts the indent off.
FLAT = """\
org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 failed 4 times
at org.apache.spark.scheduler.DAGScheduler.failJobAndIndependentStages(DAGScheduler.scala:2856)
java.base/java.util.concurrent.ThreadPoolExecutor$Worker.run(ThreadPoolExecutor.java:635)
java.base/java.lang.Thread.run(Thread.java:840)
"""
WORKER = """\
java.lang.RuntimeException: Error received from SDK harness: Traceback (most recent call last):
  File "/venv/lib/python3.11/site-packages/apache_beam/runners/worker/sdk_worker.py", line 313, in _execute
    response = task()
               ^^^^^^
ModuleNotFoundError: No module named 'mine' [while running 'Predict']
\tat org.apache.beam.runners.fnexecution.control.FnApiControlClient$ResponseStreamObserver.onNext(F.java:180)
"""


@pytest.mark.parametrize(
    ("trace", "expected"),
    [
        (NESTED, "java.util.concurrent.TimeoutException: Heartbeat of TaskManager with id tm1 timed out."),
        (
            FLAT,
            "org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 failed 4 times",
        ),
        (WORKER, "ModuleNotFoundError: No module named 'mine' [while running 'Predict']"),
        ("java.base/java.lang.Thread.run(Thread.java:840)", ""),
        ("java.lang.NullPointerException\n\tat a.B.c(B.java:1)", "java.lang.NullPointerException"),
        ("Pipeline a-1_b failed in state FAILED: java.lang.Error: full", "java.lang.Error: full"),
        ("the runner has no\nslots", "the runner has no slots"),
        ("", ""),
    ],
)
def test_the_sentence_of_the_root(trace: str, expected: str) -> None:
    """No frame is ever shown."""
    assert find_root_cause(trace) == expected


def test_versions_of_spark_that_do_not_match_are_named() -> None:
    """As Spark 3.5.5 answers a job server with 3.5.0."""
    trace = (
        "java.io.InvalidClassException: org.apache.spark.scheduler.Task; local class incompatible: stream "
        "classdesc serialVersionUID = -6188971942555435033, local class serialVersionUID = 553100815431272095"
    )

    assert explain_version_conflict(trace).startswith(
        "The job server and the cluster have different versions of Spark (InvalidClassException: "
        "org.apache.spark.scheduler.Task; local class incompatible). "
    )
    assert explain_version_conflict(NESTED) == explain_version_conflict(FLAT) == ""


def test_versions_of_flink_that_do_not_match_are_named() -> None:
    """As Flink 1.20.5 answers a job server for 1.19."""
    trace = (
        "org.apache.flink.runtime.rest.util.RestClientException: "
        "[org.apache.flink.runtime.rest.handler.RestHandlerException: Failed to deserialize JobGraph.\n"
        "\tat org.apache.flink.runtime.rest.handler.job.JobSubmitHandler.load(JobSubmitHandler.java:145)\n"
        "Caused by: java.lang.ClassNotFoundException: org.apache.flink.runtime.jobgraph.RestoreMode\n"
        "\tat java.base/java.lang.ClassLoader.loadClass(ClassLoader.java:525)\n\t... 7 more\n]"
    )

    assert explain_version_conflict(trace).startswith(
        "The job server and the cluster have different versions of Flink (ClassNotFoundException: "
        "org.apache.flink.runtime.jobgraph.RestoreMode). "
    )


def test_a_job_server_that_has_a_job_is_named() -> None:
    """As Spark 3.5.5 answers; another attempt may find it free."""
    trace = (
        "org.apache.spark.SparkException: Only one SparkContext should be running in this JVM (see "
        "SPARK-2243).The currently running SparkContext was created at:\norg.apache.beam.X.y(X.java:1)"
    )

    assert "run one job at a time (--jobs 1)" in explain_busy_job_server(trace)
    assert SparkEngine([], PipelineName("n"), 1).is_worker_lost(trace)
    assert explain_busy_job_server(NESTED) == explain_busy_job_server(FLAT) == ""


def test_a_sentence_is_bounded() -> None:
    """Some exceptions carry a whole plan."""
    assert len(find_root_cause("java.lang.Error: " + "x" * 10_000)) == 1000
