"""`pilotlight doctor`: a module per subject, a function per check, a `CheckResult` from each."""
