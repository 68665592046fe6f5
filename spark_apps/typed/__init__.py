"""Values with schemas as columns of Spark's."""
