"""What `pilotlight doctor` looks at: a module per subject, a function per check, a `Finding` from each."""
