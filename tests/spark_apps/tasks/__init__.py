"""Tasks, and what executors read."""
