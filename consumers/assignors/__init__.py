"""Assignors: pure functions behind one small interface (assignor.py)."""
