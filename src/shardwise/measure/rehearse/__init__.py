"""One rank of a plan, run for real on one GPU, or traced without any."""
