"""Tests of `folkmoot schema`."""
