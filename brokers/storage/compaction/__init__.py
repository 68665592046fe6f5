"""Keeping the last record of each key."""
