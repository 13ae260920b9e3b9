"""The audit log: who did what to which resource, in the sense of Cloud Audit Logs.

`naming` gives methods their names, `entry` makes the lines, `folder` keeps them, `recorder` is what the
server records with, `endpoint` puts it around endpoints, and `reading` finds entries again.
"""
