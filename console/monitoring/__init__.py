"""Metrics and health pages, logs, and `folkmoot top`."""
