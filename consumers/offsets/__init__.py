"""Positions, commits, and where to begin."""
