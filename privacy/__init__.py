"""Differential privacy: clipping, noise and privacy accounting."""
