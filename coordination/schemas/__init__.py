"""Recipes of the schema registry: subjects, their versions, ids, levels and modes."""
