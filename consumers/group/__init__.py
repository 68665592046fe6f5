"""Membership in a consumer group: a state machine and the thread that drives it."""
