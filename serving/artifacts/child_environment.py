"""What of the server's environment the code of models and packages gets to see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

# Where programs and libraries are, languages and clocks, and how libraries compute. A name that ends in _
# stands for all that begin like it.
_SAFE_VARIABLES = (
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "LC_", "TZ", "TMPDIR", "XDG_CACHE_HOME",
    "LD_LIBRARY_PATH", "LD_PRELOAD", "VIRTUAL_ENV", "SSL_CERT_FILE", "SSL_CERT_DIR",
    "PYTHONPATH", "PYTHONHOME", "PYTHONWARNINGS", "PYTHONHASHSEED", "PYTHONNOUSERSITE", "PYTHONUTF8",
    "PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX", "PYTHONIOENCODING", "PYTHONFAULTHANDLER",
    "PYTHONDEVMODE", "MALLOC_", "GLIBC_TUNABLES", "OMP_", "OPENBLAS_", "MKL_", "BLIS_", "KMP_", "GOMP_",
    "NUMEXPR_", "JOBLIB_", "KERAS_", "TF_CPP_", "TF_FORCE_", "TF_ENABLE_", "TF_USE_", "TF_NUM_", "TF_GPU_",
    "TF_DETERMINISTIC_", "TF_XLA_", "XLA_", "CUDA_", "NVIDIA_",
)  # fmt: skip
# What reaching storage takes besides, credentials among it, and running a job on a cluster.
_STORAGE_VARIABLES = (
    "GOOGLE_", "CLOUDSDK_", "GCLOUD_", "GCE_METADATA_", "STORAGE_EMULATOR_HOST", "HTTP_PROXY", "HTTPS_PROXY",
    "NO_PROXY", "http_proxy", "https_proxy", "no_proxy", "REQUESTS_CA_BUNDLE",
)  # fmt: skip
_CLUSTER_VARIABLES = ("JAVA_HOME", "FLINK_", "SPARK_", "HADOOP_")


def sanitize_environment(
    environment: Mapping[str, str], also_allowed: str = "", *, storage: bool = False
) -> dict[str, str]:
    """The part that is harmless, and the names in `also_allowed`, comma separated.

    `storage`: besides, what it takes to read and write Cloud Storage.
    """
    names = (*_SAFE_VARIABLES, *((*_STORAGE_VARIABLES, *_CLUSTER_VARIABLES) if storage else ()))
    return _select_variables(environment, (*names, *map(str.strip, also_allowed.split(","))))


def keep_storage_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """What a container gets, which has programs and libraries of its own."""
    return _select_variables(environment, _STORAGE_VARIABLES)


def _select_variables(environment: Mapping[str, str], names: Sequence[str]) -> dict[str, str]:
    prefixes = tuple(name for name in names if name.endswith("_"))
    return {name: value for name, value in environment.items() if name in names or name.startswith(prefixes)}
