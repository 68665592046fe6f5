"""Tests of brokers/."""
