"""A broker or a whole cluster on this machine, and their processes."""
