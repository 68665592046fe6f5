"""Writing what Spark computes to topics, each row once where that can be known."""
