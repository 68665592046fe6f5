"""Tests of the connections between clients and brokers."""
