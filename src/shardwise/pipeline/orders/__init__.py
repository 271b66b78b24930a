"""The published orders of work, each as its source defines it."""
