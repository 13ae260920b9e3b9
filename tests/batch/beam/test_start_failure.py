"""What is said when a worker cannot be started."""

from __future__ import annotations

from batch.beam.start_failure import explain_start_failure


def test_a_worker_that_cannot_be_started_is_told_of() -> None:
    """As Flink 1.19.3 and Beam 2.62 put it; other errors are left alone."""
    died = "java.lang.IllegalStateException: Process died with exit code 1"
    refused = "java.net.ConnectException: finishConnect(..) failed: Connection refused"

    assert "(/opt/worker) ended with exit code 1." in explain_start_failure("PROCESS", "/opt/worker", died)
    assert "no worker pool answers at h:1 " in explain_start_failure("EXTERNAL", "h:1", refused)
    assert explain_start_failure("DOCKER", None, refused) == ""
    assert explain_start_failure("PROCESS", "/opt/worker", "java.lang.OutOfMemoryError") == ""


def test_the_token_of_a_pool_is_not_told() -> None:
    """The message ends up in the job, which others may read."""
    config = '{"url":"h:1","params":{"token":"0123456789abcdef"}}'
    told = explain_start_failure("EXTERNAL", config, "java.net.ConnectException: Connection refused")

    assert "no worker pool answers at h:1 " in told
    assert "0123456789abcdef" not in told
