"""Schemas: identity, registry, bytes."""
