"""From a plan to a job that runs: what must be there, the start, what was measured, and why it died."""
