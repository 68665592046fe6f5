"""Clients of Confluent's registry that nobody here wrote, unmodified, in environments of their own."""
