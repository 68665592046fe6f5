"""Connections between clients and brokers; the only folder that imports zmq."""
