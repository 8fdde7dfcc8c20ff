"""Client side: one module per method, and the host that runs many clients in one process."""
