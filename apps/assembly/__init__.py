"""Put a run together from its configuration, and check it before it starts."""
