"""Built-in algorithms: programs that train a table of comma-separated values without a line of user code.

They run as replicas of jobs do, `python -m training.algorithms.NAME ARGUMENTS --job-dir FOLDER`:

    boosted_trees               XGBoost, one replica
    distributed_boosted_trees   XGBoost, a master and workers
    linear_learner              scikit-learn

Files have no header; the target is the first column. Below the job's folder they write `model/`, which can be
deployed and takes raw rows, `processed_data/` and `artifacts/`.
"""
