"""The control plane: designates the leader of each partition."""
