"""A job that runs elsewhere, by its log: held against its plan, and told when it drifts."""
