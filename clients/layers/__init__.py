"""Layers of a client's work: each derives from how a client trains whether it applies, and if not, why."""
