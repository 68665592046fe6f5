"""The control plane: which broker is to lead which partition."""
