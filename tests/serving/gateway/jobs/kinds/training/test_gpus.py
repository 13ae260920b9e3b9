"""Devices are found, and each is lent to one job at a time."""

from __future__ import annotations

from pathlib import Path

from serving.gateway.jobs.kinds.training.gpus import DeviceLender, resolve_gpu_setting


def test_devices(tmp_path: Path) -> None:
    for name in ("nvidia10", "nvidia0", "nvidiactl", "null"):
        (tmp_path / name).touch()

    assert resolve_gpu_setting("auto", tmp_path) == ("0", "10")
    assert resolve_gpu_setting("off", tmp_path) == ()
    assert resolve_gpu_setting("GPU-1, 3,3", tmp_path) == ("GPU-1", "3")


def test_a_device_has_one_borrower() -> None:
    lender = DeviceLender(("0", "1", "2"))

    assert lender.lend("a", 2) == ("0", "1")
    assert lender.lend("b", 1) == ("2",)
    lender.keep_only({"b"})
    assert lender.lend("c", 2) == ("0", "1")
    assert lender.lend("b", 1) == ("2",)
