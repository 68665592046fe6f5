"""The command line and the embedded cluster."""
