"""What a job may ask of Beam: capacity, and nothing that the server's configuration decides."""

from __future__ import annotations

import sys

import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from serving.errors import FailedPrecondition, InvalidArgument
from serving.gateway.jobs.kinds.prediction.beam_options import check_beam_options, require_beam
from serving.resources import BatchOptions


def test_without_beam_there_are_no_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra that brings it is named."""
    require_beam()
    monkeypatch.setitem(sys.modules, "apache_beam", None)
    with pytest.raises(FailedPrecondition, match=r"need Apache Beam.*pip install 'pilotlight\[batch\]'"):
        require_beam()


def refusal(*options: str, runner: str = "") -> InvalidArgument | None:
    try:
        check_beam_options(BatchOptions(runner=runner, pipeline_options=options), "FlinkRunner")
    except InvalidArgument as error:
        return error
    return None


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--parallelism=4",),
        ("--num_workers", "3", "--machine_type=n1-standard-4"),
        ("--labels=team=ads", "--label", "day=monday"),
        ("--min_cpu_platform=Intel Skylake", "--region=europe-west1"),
    ],
)
def test_a_job_may_say_how_much_it_wants(options: tuple[str, ...]) -> None:
    """Written with an equals sign or without."""
    assert refusal(*options) is None


@pytest.mark.parametrize(
    "options",
    [
        ("--job_server_java_launcher=/bin/sh",),
        ("--job_server_java_launcher", "/bin/sh"),
        ("--job_server_jav=/bin/sh",),
        ("--job-server-java-launcher=/bin/sh",),
        ("-job_server_java_launcher=/bin/sh",),
        ("—job_server_java_launcher=/bin/sh",),
        (" --job_server_java_launcher=/bin/sh",),
        ("--Job_Server_Java_Launcher=/bin/sh",),
        ("--labels", "--job_server_java_launcher=/bin/sh"),
        ("--labels=a", "--job_server_java_launcher=/bin/sh"),
        ("--labels", "a", "/bin/sh"),
        ("--labels=a", "/bin/sh"),
        ("--",),
        ("--=",),
        ("",),
        ("--num_workers\n=2",),
        ("--runner=FlinkRunner",),
        ("--runner", "FlinkRunner"),
        ("--environment_type=PROCESS",),
        ('--environment_config={"command": "sh"}',),
        ("--environment_options=process_command=sh",),
        ("--experiments=use_portable_job_submission,sdk_location=/x",),
        ("--experiment=x",),
        ("--sdk_location=http://evil.example/x.tar",),
        ("--setup_file=/tmp/setup.py",),
        ("--job_endpoint=evil.example:1",),
        ("--flink_master=evil.example:1",),
        ("--spark_master_url=spark://evil.example:1",),
        ("--prism_location=/tmp/x",),
        ("--service_account_email=x",),
        ("--impersonate_service_account=x",),
        ("--temp_location=/etc",),
        ("--unknown=1",),
    ],
)
def test_all_else_is_the_servers(options: tuple[str, ...]) -> None:
    """In whatever spelling; the refusal names field, option and setting."""
    error = refusal(*options)

    assert error is not None
    assert error.field == "batch_options.pipeline_options"
    assert "setting batch_options" in error.message


def test_of_all_that_beam_knows_only_capacity_is_open() -> None:
    """An option that a later Beam brings is closed until somebody has looked at it."""
    known = PipelineOptions([]).get_all_options()

    assert {name for name in known if refusal(f"--{name}=1") is None} == {
        "autoscaling_algorithm", "disk_size_gb", "element_processing_timeout_minutes", "flexrs_goal",
        "labels", "machine_type", "max_cache_memory_usage_mb", "max_num_workers", "max_parallelism",
        "min_cpu_platform", "num_workers", "number_of_worker_harness_threads", "parallelism", "region",
        "sdk_worker_parallelism", "worker_region", "worker_zone", "zone",
    }  # fmt: skip


def test_a_job_chooses_no_runner_but_the_servers_or_the_one_here() -> None:
    """Others start programs that they find, or fetch them: Java, Prism, job servers."""
    assert refusal(runner="FlinkRunner") is None
    assert refusal(runner="FnApiRunner") is None
    for runner in ("PrismRunner", "PortableRunner", "SparkRunner", "DirectRunner", "flinkrunner"):
        error = refusal(runner=runner)
        assert error is not None
        assert error.field == "batch_options.runner"
        assert runner in error.message
        assert "setting batch_runner" in error.message
