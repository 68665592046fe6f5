"""A query as a member of its group."""
