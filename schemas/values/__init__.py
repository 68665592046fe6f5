"""Values with schemas: the wire format, serialisers and deserialisers."""
