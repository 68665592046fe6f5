"""Small files that a crash leaves whole, old or new."""
