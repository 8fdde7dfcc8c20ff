"""Statistics of rows that stay with their owners: exact sums, generalised linear models, inference."""
