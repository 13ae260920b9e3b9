"""The values of `--format`, `--filter`, `--sort-by` and `--flatten`, as gcloud has them.

keys        a.b[0].c[], and what a record has there
scanner     reads the parts of an expression
transforms  .basename(), .list(separator=;), ...
projection  table[box](name.basename():label=ID, labels.team)
filters     state=READY AND -labels.team:ads
records     flatten, sort, filter and limit lists
printers    a format and records as text
"""
