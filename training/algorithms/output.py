"""What an algorithm leaves in the job's folder."""

from __future__ import annotations

import io
import json
import math
import os
from collections.abc import Mapping
from typing import Any

import joblib
import pandas as pd
import yaml

from serving.artifacts.storage import FileStore
from training.algorithms.table import DataSplits
from training.provided.hypertune import HyperTune


class JobFolder:
    """The folder of a job, local or in a bucket."""

    def __init__(self, uri: str, files: FileStore) -> None:
        self._uri = uri.rstrip("/")
        self._files = files

    def write_model(
        self, name: str, content: bytes, framework: str, metrics: Mapping[str, float], step: int
    ) -> None:
        """Write the model of a step, and what a version of it can be created with."""
        self._files.write(f"{self._uri}/model/{name}", content)
        labels = {tag: _format_metric_label(one) for tag, one in metrics.items()}
        config = {"framework": framework, "labels": {**labels, "global_step": str(step)}}
        self._files.write(f"{self._uri}/model/deployment_config.yaml", yaml.safe_dump(config).encode())

    def write_pipeline(self, pipeline: Any, metrics: Mapping[str, float], step: int) -> None:
        """Write a model of scikit-learn."""
        content = io.BytesIO()
        joblib.dump(pipeline, content)
        self.write_model("model.joblib", content.getvalue(), "SCIKIT_LEARN", metrics, step)

    def write_processed_data(self, splits: DataSplits) -> None:
        tables = {"training": splits.training, "validation": splits.validation, "test": splits.test}
        for name, table in tables.items():
            if table is not None:
                text = table.to_csv(header=False, index=False)
                self._files.write(f"{self._uri}/processed_data/{name}.csv", text.encode())

    def write_metadata(self, features: pd.DataFrame, labels: list[Any]) -> None:
        """What somebody needs who prepares rows by himself."""
        columns = [{"index": place, "type": str(features[name].dtype)} for place, name in enumerate(features)]
        content = {"columns": columns, "labels": labels}
        self._files.write(f"{self._uri}/artifacts/metadata.json", json.dumps(content, default=str).encode())


def report_metrics(metrics: Mapping[str, float], step: int) -> None:
    """Print metrics, and report each to the tuning service if this is a trial."""
    tuner = HyperTune() if "CLOUD_ML_HP_METRIC_FILE" in os.environ else None
    for tag, value in metrics.items():
        print(f"{tag}: {value:.6g} (step {step})", flush=True)
        if tuner is not None:
            tuner.report_hyperparameter_tuning_metric(tag, value, step)


def _format_metric_label(value: float) -> str:
    """Labels have neither points nor signs: percent where that makes sense, else digits."""
    if not math.isfinite(value):
        return "none"
    return str(round(value * 100)) if 0 <= value <= 1 else f"{value:.3f}".replace(".", "_").lstrip("-")
