"""What of the server's environment the code of models and packages gets to see."""

from __future__ import annotations

from collections.abc import Mapping

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
# What reaching storage, and running a job on a cluster, takes besides: credentials among it.
_STORAGE_VARIABLES = (
    "GOOGLE_", "CLOUDSDK_", "GCLOUD_", "GCE_METADATA_", "STORAGE_EMULATOR_HOST", "HTTP_PROXY", "HTTPS_PROXY",
    "NO_PROXY", "http_proxy", "https_proxy", "no_proxy", "REQUESTS_CA_BUNDLE", "JAVA_HOME", "FLINK_",
    "SPARK_", "HADOOP_",
)  # fmt: skip


def sanitize_environment(
    environment: Mapping[str, str], also_allowed: str = "", *, storage: bool = False
) -> dict[str, str]:
    """The part that is harmless, and the names in `also`, comma separated.

    `storage`: besides, what it takes to read and write Cloud Storage.
    """
    named = (*_SAFE_VARIABLES, *(_STORAGE_VARIABLES if storage else ()))
    prefixes = tuple(name for name in named if name.endswith("_"))
    allowed = {*named, *(name.strip() for name in also_allowed.split(","))}
    return {
        name: value for name, value in environment.items() if name in allowed or name.startswith(prefixes)
    }
