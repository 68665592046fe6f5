"""Tests of consumers: the fetcher, the group, the whole."""
