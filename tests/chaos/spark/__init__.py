"""Spark applications beside plain members under faults: `make chaos-spark`."""
