"""`folkmoot spark`, without Spark; what it starts is tried in tests/spark_apps/test_apps.py."""
