"""The log as a table: Spark's source, a member of the group like any other."""
