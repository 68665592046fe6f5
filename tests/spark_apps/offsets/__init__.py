"""Offsets in checkpoints, bounds, and ends of logs."""
