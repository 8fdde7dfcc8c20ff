"""Tests of the bottom layer."""
