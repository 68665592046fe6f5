"""Tests of Avro schemas."""
