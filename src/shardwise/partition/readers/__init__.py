"""Files that describe a partition problem: SAPP's problem, model and init forms, traces and memory logs."""
