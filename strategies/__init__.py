"""Server side: one module per method, and the cohort strategy they share."""
