"""The sink: rounds on real brokers, and writes by real Spark."""
