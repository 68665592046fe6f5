"""Metrics, health pages and traces of brokers and clients."""
