"""The three inputs, model, cluster and strategy: their types, files, catalog and checks."""
