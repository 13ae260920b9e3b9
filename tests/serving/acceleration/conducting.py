"""`python -m tests.serving.acceleration.conducting CASE FOLDER`: conducts the study of a case.

From a process of its own, because that has a single thread.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping

from serving.acceleration.verification_process import (
    VerificationOrder,
    run_in_subprocess,
    start_in_background,
)
from serving.acceleration_record import AccelerationKey
from serving.errors import LoadFailed
from serving.runtimes import LoadSpec
from tests.serving.acceleration.models import CRASHING, GOOD, HANGING, Fake, kept

KEY = AccelerationKey("digest", "libraries", "processor")


def _failing(_: LoadSpec) -> object:
    raise LoadFailed("There is no model.")


CASES: Mapping[str, Callable[[LoadSpec], object]] = {
    "kept": lambda _: Fake([kept()]),
    "crashing": lambda _: Fake([CRASHING, GOOD]),
    "hanging": lambda _: Fake([HANGING, GOOD]),
    "failing": _failing,
    "without offers": lambda _: Fake([]),
    "not accelerable": lambda _: object(),
}


async def _wait_in_background(order: VerificationOrder) -> None:
    await start_in_background(order).wait()


if __name__ == "__main__":
    if sys.argv[1] == "background":
        # A model of a file: the other process loads it by itself.
        asyncio.run(
            _wait_in_background(VerificationOrder(folder=sys.argv[2], key=KEY, model_dir=sys.argv[3]))
        )
    else:
        run_in_subprocess(
            VerificationOrder(folder=sys.argv[2], key=KEY, model_dir="", framework="CUSTOM", patience=1),
            load_function=CASES[sys.argv[1]],
        )
