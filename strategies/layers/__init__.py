"""Layers of an exchange, server side: each derives from a method's messages whether it applies, and if not, why."""
