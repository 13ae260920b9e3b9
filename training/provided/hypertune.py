"""Reports the metric of a trial to the tuning service, as the package cloudml-hypertune does.

Programs find it as the module `hypertune`. Every interpreter from Python 3.6 on can run it.
"""

import collections
import json
import os
import time
from typing import Any, Deque, Dict, Optional, Union

_DEFAULT_TAG = "training/hptuning/metric"
_DEFAULT_FILE = "/tmp/hypertune/output.metrics"  # noqa: S108  that of AI Platform
# The file has this many reports, the latest.
_MOST_REPORTS = 100


class HyperTune:
    """Writes the reports of one process to the file that the service names."""

    def __init__(self) -> None:
        self.metric_path = os.environ.get("CLOUD_ML_HP_METRIC_FILE", _DEFAULT_FILE)
        self.trial_id = os.environ.get("CLOUD_ML_TRIAL_ID", "0")
        self.metrics_queue: Deque[Dict[str, Any]] = collections.deque(maxlen=_MOST_REPORTS)
        folder = os.path.dirname(self.metric_path)
        if folder:
            os.makedirs(folder, exist_ok=True)

    def report_hyperparameter_tuning_metric(
        self,
        hyperparameter_metric_tag: Optional[str],
        metric_value: Union[float, str],
        global_step: Optional[int] = None,
        checkpoint_path: str = "",
    ) -> None:
        """Report the value of a metric at a step; checkpoint_path is where training could go on from."""
        report = {
            "timestamp": time.time(),
            "trial": str(self.trial_id),
            hyperparameter_metric_tag or _DEFAULT_TAG: str(float(metric_value)),
            "global_step": str(int(global_step or 0)),
            "checkpoint_path": checkpoint_path,
        }
        self.metrics_queue.append(report)
        new = self.metric_path + ".new"
        with open(new, "w") as file:
            for one in self.metrics_queue:
                file.write(json.dumps(one, sort_keys=True) + "\n")
        # At once: who reads meanwhile finds no half of a line.
        os.replace(new, self.metric_path)
