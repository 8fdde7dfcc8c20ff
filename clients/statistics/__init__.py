"""Clients of statistics: sums over rows, from which the server computes what a pooled analysis would."""
