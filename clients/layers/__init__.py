"""Layers, client side: the bound of updates, noise, compression and secure sums; privacy of examples, stacked training.

A layer derives from how a client trains (:class:`florilegium.clients.core.training_facts.Training`) whether it applies.
"""
