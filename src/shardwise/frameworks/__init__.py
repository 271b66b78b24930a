"""One folder a framework: read, write, names."""
