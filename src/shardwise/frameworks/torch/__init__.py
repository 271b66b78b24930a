"""torch.distributed.pipelining: schedules as CSV, and a program that runs them."""
