"""Avro schemas: which are the same, which are none, and which read what which others wrote."""
