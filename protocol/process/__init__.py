"""What a process has once, whatever clients it has."""
