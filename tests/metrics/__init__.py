"""Tests of what brokers and clients tell of themselves."""
