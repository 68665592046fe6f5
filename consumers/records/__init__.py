"""Fetched batches as records, columns and Arrow tables."""
