"""Tests of the demo: the flights, the direct pass, the results."""
