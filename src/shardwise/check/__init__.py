"""Every rule that a question must keep: all faults at once, each with its numbers and its cure."""
