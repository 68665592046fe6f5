"""The demo: real flights through brokers, a consumer group and Spark."""
