"""Networks as ordered named blocks, and functions on their parameters. Independent of Flower."""
