"""The version, in this one place: the wheel, the files that are written and `--version` all read it here."""

__version__ = "0.1.0"
