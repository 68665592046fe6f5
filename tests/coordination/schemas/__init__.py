"""The recipes of the schema registry."""
