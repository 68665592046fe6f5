"""Tests of the command line and of what starts processes."""
