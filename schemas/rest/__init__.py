"""The schema registry over HTTP, as Confluent's clients speak to it."""
