"""Tests of the demo: the flights, and what the command refuses."""
