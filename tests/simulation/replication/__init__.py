"""A partition and its replicas through hostile histories."""
