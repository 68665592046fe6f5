"""Fast tests, without Docker; folders mirror the code's."""
