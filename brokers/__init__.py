"""Keep the log and answer requests."""
