"""A running query as a member of its group."""
