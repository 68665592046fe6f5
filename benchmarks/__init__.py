"""Measurements against the systems that people use. `make bench` runs them all; see docs/performance.md.

`bench_*.py` are its scenarios.
"""
