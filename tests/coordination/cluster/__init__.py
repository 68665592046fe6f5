"""Recipes of the controller: its election, moves of replicas, restoring, events."""
