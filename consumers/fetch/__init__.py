"""Asking brokers for batches and handing them out."""
