"""Kernels that are compiled before a model is loaded."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from tests.bounds import HANG_SECONDS

_PROGRAM = """
from autoscaler import linux
from serving.runtimes.tensorflow_runtime.kernel_warmup import compile_kernels

before = linux.thread_names()
compile_kernels()
assert linux.thread_names() == before, linux.thread_names()
"""
_PROGRAM_WITHOUT_THREADS = """
import os, resource
from serving.runtimes.tensorflow_runtime.kernel_warmup import compile_kernels

resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
if not os.getuid():
    os.setuid(65534)  # the limit does not hold for root
try:
    compile_kernels()
except RuntimeError as error:
    print(error)
"""


def output_of(program: str, **variables: str) -> str:
    """What a program prints that must not fail; in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **variables},
        text=True,
        check=True,
        timeout=HANG_SECONDS,
    )
    return done.stdout


@pytest.mark.skipif(platform.machine() != "x86_64", reason="others have their own library for products")
def test_a_product_is_computed_and_no_thread_is_left(tf: object) -> None:
    """By oneDNN, which tells of it; it compiles all its kernels for products at the first one."""
    assert "exec,cpu,gemm" in output_of(_PROGRAM, ONEDNN_VERBOSE="1")


def test_a_shortage_of_threads_raises_an_error(tf: object) -> None:
    """TensorFlow would abort the process."""
    assert "can't start new thread" in output_of(_PROGRAM_WITHOUT_THREADS)
