"""Options and columns."""
