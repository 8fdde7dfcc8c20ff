"""Secure aggregation (SecAgg+, Bell et al. 2020) without messages: what a party and the server compute in each stage.

The protocol, its guarantee and its parameters are explained in docs/secure-aggregation.md.
"""
