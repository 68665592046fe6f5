"""Measurements against the systems that people use. `make bench` runs them all; see docs/performance.md.

`bench_*.py` are its scenarios. `profile_*.py` are programs of their own, which show where a hot path
spends its time.
"""
