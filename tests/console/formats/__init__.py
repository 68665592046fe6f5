"""Tests of how records look in text."""
