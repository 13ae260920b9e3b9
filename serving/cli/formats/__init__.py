"""The values of `--format`, `--filter`, `--sort-by` and `--flatten`, as in gcloud.

keys           a.b[0].c[], and the value of a record there
scanner        reads the parts of an expression
transforms     .basename(), .list(separator=;), ...
projection     table[box](name.basename():label=ID, labels.team)
filters        state=READY AND -labels.team:ads
records        flatten, sort, filter and limit lists
printers       a format and records as text
tables         tables on standard output
value_parsers  lists, mappings and choices of other flags
"""
