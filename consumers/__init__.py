"""Read the log, alone or as a member of a group."""
