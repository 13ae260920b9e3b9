"""The libraries that samples of Google were written for, about as AI Platform had them."""

from tests.compat.environments import Environment

_CLIENTS = (
    *("google-api-python-client", "google-cloud-storage", "google-cloud-logging", "google-cloud-bigquery"),
    *("oauth2client", "protobuf<3.21", "joblib<1.3", "setuptools<60", "wheel", "six", "cloudml-hypertune"),
)
# Runtime version 1.15.
FIRST = Environment(
    "3.7",
    (
        *("scikit-learn==0.20.4", "numpy==1.16.4", "pandas==0.24.2", "scipy==1.2.2", "xgboost==0.90"),
        *("tensorflow==1.15.5", "h5py==2.10.0", "keras==2.2.5", *_CLIENTS),
    ),
)
# That with PyTorch, which came as a package of the version.
TORCH = Environment("3.7", (*FIRST.requirements, "torch==1.3.1"))
# Runtime version 2.3.
SECOND = Environment(
    "3.7",
    (
        *("scikit-learn==0.23.2", "numpy==1.18.5", "pandas==1.1.2", "scipy==1.4.1", "xgboost==1.2.0"),
        *("tensorflow==2.3.4", *_CLIENTS),
    ),
)
# What the container of a sample installs.
CONTAINER = Environment(
    "3.7",
    (
        *("fastapi~=0.63", "uvicorn>=0.12.0,<0.14.0", "joblib~=1.0", "numpy~=1.20", "scikit-learn~=0.24"),
        *("google-cloud-storage>=1.26.0,<2.0.0dev", "google-api-python-client"),
    ),
)
