"""Tests of brokers/controller/."""
