"""Records written and read by commands."""
