"""Tests of the networks and their parameters."""
