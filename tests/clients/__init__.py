"""Tests of the client side."""
