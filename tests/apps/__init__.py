"""Tests of the package ``apps``."""
