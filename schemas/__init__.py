"""Avro schemas: identity, registry, serialisers and columns."""
