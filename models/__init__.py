"""Networks as ordered named blocks, and tools on their parameters. Knows nothing of Flower."""
