"""Which Python and libraries AI Platform's runtime versions had, as far as models are pickled with them.

Google's list is offline. That each line can be installed with Python 3.7 was tried (with pip; uv refuses that
of 1.15). The minor versions decide whether a pickle can be read; the last part of a version is not certain.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Release:
    """A Python, and the libraries that are installed into it."""

    python: str
    scikit_learn: str
    xgboost: str
    numpy: str
    pandas: str
    scipy: str

    @property
    def requirements(self) -> tuple[str, ...]:
        """As pip takes them."""
        return (
            f"scikit-learn=={self.scikit_learn}",
            f"xgboost=={self.xgboost}",
            f"numpy=={self.numpy}",
            f"pandas=={self.pandas}",
            f"scipy=={self.scipy}",
            "joblib<1.3",
            "setuptools",
            "wheel",
        )


RELEASES: Mapping[str, Release] = {
    "1.15": Release("3.7", "0.20.4", "0.90", "1.16.4", "0.24.2", "1.2.2"),
    "2.1": Release("3.7", "0.22.1", "0.90", "1.18.1", "0.25.3", "1.4.1"),
    "2.2": Release("3.7", "0.22.2", "1.0.2", "1.18.5", "1.0.4", "1.4.1"),
    "2.3": Release("3.7", "0.23.2", "1.2.0", "1.18.5", "1.1.2", "1.5.2"),
    "2.4": Release("3.7", "0.24.0", "1.3.1", "1.19.5", "1.2.1", "1.6.0"),
    "2.5": Release("3.7", "0.24.2", "1.4.2", "1.19.5", "1.2.4", "1.6.3"),
    "2.6": Release("3.7", "0.24.2", "1.4.2", "1.19.5", "1.2.5", "1.6.3"),
    "2.7": Release("3.7", "1.0.1", "1.5.1", "1.20.3", "1.3.4", "1.7.2"),
    "2.8": Release("3.7", "1.0.2", "1.5.2", "1.21.5", "1.3.5", "1.7.3"),
    "2.9": Release("3.7", "1.0.2", "1.6.1", "1.21.6", "1.3.5", "1.7.3"),
    "2.10": Release("3.7", "1.0.2", "1.6.2", "1.21.6", "1.3.5", "1.7.3"),
    "2.11": Release("3.7", "1.0.2", "1.6.2", "1.21.6", "1.3.5", "1.7.3"),
}
