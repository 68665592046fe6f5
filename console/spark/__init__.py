"""`folkmoot spark`: applications started as Spark wants it, and a standalone cluster on this machine."""
