"""The kinds of jobs: what each adds to the queue, by the protocol `serving.gateway.jobs.job_kind.JobKind`."""
