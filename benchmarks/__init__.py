"""Benchmarks of this package against plain PyTorch, stock Flower and pfl-research, measured side by side."""
