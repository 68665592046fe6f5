"""Tasks: how offsets are divided into them, and how an executor reads one."""
