"""Measurements. `make bench` runs them all; `make bench BENCH_ARGS=codec` those whose name fits."""
