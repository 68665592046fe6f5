"""The benchmarks still run, count right, and say what they found."""
