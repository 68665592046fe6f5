"""Tests of what a process has once."""
