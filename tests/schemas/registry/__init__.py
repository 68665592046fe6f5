"""The registry: versions, ids, levels, modes, references, contexts."""
