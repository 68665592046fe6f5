"""Tests of the serialisers."""
