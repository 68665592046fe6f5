"""The formats on the wire and on disk, without I/O and without a clock."""
