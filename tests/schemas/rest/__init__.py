"""Tests of the registry's HTTP server."""
