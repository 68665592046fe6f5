"""Options of queries, and the columns."""
