"""Tests of the source for Spark."""
