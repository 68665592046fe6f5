"""Replicas of partitions: who leads, who follows, and which records are committed."""
