"""What the bytes of a record mean: Avro schemas, their identity and their registry."""
