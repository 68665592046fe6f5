"""What goes over the wire and onto disk, without I/O and without a clock."""
