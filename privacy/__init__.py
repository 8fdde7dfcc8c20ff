"""Differential privacy: clipping, noise, and what releases cost together."""
