"""Tests of the broker's event loop and of what it answers."""
