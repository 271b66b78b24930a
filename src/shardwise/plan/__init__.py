"""The typed plan and its file: what every verb reads and writes."""
