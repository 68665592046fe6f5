"""Tests of administration: topics, replicas, groups and their offsets."""
