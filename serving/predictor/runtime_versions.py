"""Which Python and libraries AI Platform's runtime versions had, as far as models are pickled with them.

Google's list is offline. That each line can be installed with Python 3.7 was tried (with pip; uv refuses that
of 1.15). The minor versions decide whether a pickle can be read; the last part of a version is not certain.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RuntimeVersion:
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
            *BUILD_REQUIREMENTS,
        )


# What an environment needs besides, so that packages of custom routines can be built in it.
BUILD_REQUIREMENTS = ("setuptools", "wheel")

RUNTIME_VERSIONS: Mapping[str, RuntimeVersion] = {
    "1.15": RuntimeVersion("3.7", "0.20.4", "0.90", "1.16.4", "0.24.2", "1.2.2"),
    "2.1": RuntimeVersion("3.7", "0.22.1", "0.90", "1.18.1", "0.25.3", "1.4.1"),
    "2.2": RuntimeVersion("3.7", "0.22.2", "1.0.2", "1.18.5", "1.0.4", "1.4.1"),
    "2.3": RuntimeVersion("3.7", "0.23.2", "1.2.0", "1.18.5", "1.1.2", "1.5.2"),
    "2.4": RuntimeVersion("3.7", "0.24.0", "1.3.1", "1.19.5", "1.2.1", "1.6.0"),
    "2.5": RuntimeVersion("3.7", "0.24.2", "1.4.2", "1.19.5", "1.2.4", "1.6.3"),
    "2.6": RuntimeVersion("3.7", "0.24.2", "1.4.2", "1.19.5", "1.2.5", "1.6.3"),
    "2.7": RuntimeVersion("3.7", "1.0.1", "1.5.1", "1.20.3", "1.3.4", "1.7.2"),
    "2.8": RuntimeVersion("3.7", "1.0.2", "1.5.2", "1.21.5", "1.3.5", "1.7.3"),
    "2.9": RuntimeVersion("3.7", "1.0.2", "1.6.1", "1.21.6", "1.3.5", "1.7.3"),
    "2.10": RuntimeVersion("3.7", "1.0.2", "1.6.2", "1.21.6", "1.3.5", "1.7.3"),
    "2.11": RuntimeVersion("3.7", "1.0.2", "1.6.2", "1.21.6", "1.3.5", "1.7.3"),
}

# For other versions of scikit-learn, up to a minor one: the Python to build with, and what goes with them.
_COMPATIBLE_REQUIREMENTS: Sequence[tuple[tuple[int, int], str, tuple[str, ...]]] = (
    ((0, 24), "3.7", ("numpy<1.22", "pandas<2", "joblib<1.3")),
    ((1, 1), "3.9", ("numpy<1.24", "pandas<2", "scipy<1.11")),
    ((1, 3), "3.10", ("numpy<2", "pandas<2.3", "scipy<1.12")),
    ((1, 6), "3.12", ("pandas",)),
)
# Versions, up to a minor one, that do not say themselves what of others is too new for them.
_UPPER_BOUNDS: Sequence[tuple[str, tuple[int, int], str]] = (
    ("pandas", (2, 1), "numpy<2"),
    ("scipy", (1, 12), "numpy<2"),
    ("tensorflow", (2, 17), "numpy<2"),
    ("tensorflow", (2, 8), "protobuf<3.20"),
)
_EXACT = re.compile(r"([\w.-]+)==(\d+)\.(\d+)\b.*")
_NUMBER = re.compile(r"\d+\.\d+(\.\d+)?")


@dataclass(frozen=True, slots=True)
class RuntimeSuggestion:
    """The command that has models computed by an old version, and the runtimeVersion that they then need."""

    command: str
    runtime_version: str


def suggest_runtime(scikit_learn: str) -> RuntimeSuggestion:
    """For models of a version of scikit-learn: the newest runtime version that had its minor one, if any had.

    For others it is their own number, which no runtime version of AI Platform has: it has three parts.
    """
    same = {
        version: release.scikit_learn
        for version, release in RUNTIME_VERSIONS.items()
        if _minor_version(release.scikit_learn) == _minor_version(scikit_learn)
    }
    if same:
        exact = [version for version, found in same.items() if found == scikit_learn]
        version = (exact or list(same))[-1]
        return RuntimeSuggestion(f"pilotlight runtimes add {version} --create", version)
    number = _NUMBER.match(scikit_learn)
    version = number[0] if number else "1.0.0"
    command = f"pilotlight runtimes add {version} --create --with scikit-learn=={scikit_learn}"
    return RuntimeSuggestion(command, version)


def list_runtime_versions_by_xgboost() -> Mapping[str, str]:
    """The newest runtime version that had each minor version of XGBoost."""
    return {
        ".".join(_minor_version(release.xgboost)): version for version, release in RUNTIME_VERSIONS.items()
    }


def find_compatible_requirements(requirements: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """The Python to build an environment with these from ("": any), and what goes with them besides."""
    exact = [found for one in requirements if (found := _EXACT.fullmatch(one.replace(" ", "")))]
    minors = {found[1]: (int(found[2]), int(found[3])) for found in exact}
    bounds = dict.fromkeys(
        bound for name, last, bound in _UPPER_BOUNDS if name in minors and minors[name] <= last
    )
    for last, python, besides in _COMPATIBLE_REQUIREMENTS:
        if "scikit-learn" in minors and minors["scikit-learn"] <= last:
            return python, (*besides, *bounds, *BUILD_REQUIREMENTS)
    return "", (*bounds, *BUILD_REQUIREMENTS)


def _minor_version(version: str) -> list[str]:
    return version.split(".")[:2]
