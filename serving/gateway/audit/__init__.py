"""The audit log: who did what to which resource, in the sense of Cloud Audit Logs.

`method_names` names methods, `log_entry` encodes lines, `log_folder` stores them, `audit_log` records calls
for the server, `endpoint_audit` wraps endpoints, `completions` finds finished work, `log_reader` reads
entries.
"""
