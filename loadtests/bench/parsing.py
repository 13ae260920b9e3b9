"""How long a numeric JSON body takes to become an array, beside `json.loads` and `numpy.array`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import numpy as np

from serving.runtimes import ColumnsFormat, ColumnSpec
from serving.runtimes.json_codec import InstancesDecoder


def make_image_body() -> bytes:
    """One 224 x 224 x 3 image of floats with five digits: about 1.3 MB."""
    image = np.random.default_rng(0).random((1, 224, 224, 3)).round(5)
    return json.dumps({"instances": image.tolist()}, separators=(",", ":")).encode()


def time_run(run: Callable[[], object]) -> float:
    """Seconds of one run."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def measure_image(repeat: int = 15) -> tuple[float, float]:
    """Seconds of the fastest run, which is disturbed least, with json and numpy, and with our decoder.

    They take turns, as a machine that is slow for a while would else be slow for one of them alone.
    """
    body = make_image_body()
    form = ColumnsFormat((ColumnSpec("image", np.dtype(np.float32), (224, 224, 3)),))
    decoder = InstancesDecoder()
    plain, ours = [], []
    for _ in range(repeat):
        plain.append(time_run(lambda: np.array(json.loads(body)["instances"])))
        ours.append(time_run(lambda: decoder.decode(body, lambda _: form)))
    return min(plain), min(ours)


if __name__ == "__main__":
    plain, ours = measure_image()
    print(
        f"224x224x3 image, {len(make_image_body()) / 1e6:.2f} MB of JSON: "
        f"json + numpy {plain * 1e3:.1f} ms, ours {ours * 1e3:.1f} ms, {plain / ours:.1f} times faster"
    )
