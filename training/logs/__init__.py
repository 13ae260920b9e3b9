"""The log of a training job: lines of its replicas, with time, severity and task.

A folder has segments, files of some 1 MiB with a JSON object per line; each belongs to one stream, that of a
replica in an attempt:

    TRIAL.TASK.ATTEMPT.NUMBER.jsonl      as 0.worker-replica-1.1.000003.jsonl; trial 0: no tuning

A log over its limit loses segments from the middle of its longest streams, never the first or last of one;
where there is nothing else to drop, those of the first trials.
"""
