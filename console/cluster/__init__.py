"""Commands for topics, replicas, groups and logs."""
