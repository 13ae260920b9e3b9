"""The GPUs of this machine, and which job has which."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path

_DEVICE = re.compile(r"nvidia(\d+)")


def resolve_gpu_setting(setting: str, folder: Path = Path("/dev")) -> tuple[str, ...]:
    """The devices of the setting `gpus`, as CUDA_VISIBLE_DEVICES has them."""
    match setting.strip():
        case "off":
            return ()
        case "auto":
            found = (_DEVICE.fullmatch(path.name) for path in folder.glob("nvidia*"))
            return tuple(map(str, sorted(int(one[1]) for one in found if one)))
        case names:
            return tuple(dict.fromkeys(name for name in map(str.strip, names.split(",")) if name))


class DeviceLender:
    """Lends devices to jobs, by name, until they are over."""

    def __init__(self, devices: Sequence[str]) -> None:
        self._devices = devices
        self._lent: dict[str, tuple[str, ...]] = {}

    def lend(self, job: str, count: int) -> tuple[str, ...]:
        """The devices of a job, which has none yet: fewer than `count` if there are no more."""
        taken = {device for other, devices in self._lent.items() if other != job for device in devices}
        free = [device for device in self._devices if device not in taken]
        self._lent[job] = tuple(free[:count])
        return self._lent[job]

    def keep_only(self, jobs: Collection[str]) -> None:
        """Take back what others than these jobs have."""
        self._lent = {job: devices for job, devices in self._lent.items() if job in jobs}
