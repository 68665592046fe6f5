"""Metrics, health pages and traces: what tells others how brokers and clients do."""
