"""State of the whole process, shared by all its clients."""
