"""Statistics on the server: what a pooled analysis would give, from sums over clients."""
