"""What a cluster has, shown and changed: topics, replicas, groups, logs."""
