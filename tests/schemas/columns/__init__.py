"""Columns of Avro values to Arrow and back."""
