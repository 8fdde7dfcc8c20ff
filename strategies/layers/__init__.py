"""Layers of an exchange, server side: bound, noise, robust rules, compression, secure sums, privacy of examples.

Each derives from a method's messages (:class:`florilegium.strategies.exchange.messages.Messages`) whether it applies.
"""
