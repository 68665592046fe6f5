"""What queries are given: options, and the columns that there are."""
