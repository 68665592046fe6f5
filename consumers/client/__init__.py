"""Consumer and AsyncConsumer."""
