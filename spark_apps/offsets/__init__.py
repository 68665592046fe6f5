"""Offsets: in the checkpoint, where reading begins and ends, and where logs end."""
