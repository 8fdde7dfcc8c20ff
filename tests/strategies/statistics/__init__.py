"""Tests of the statistics\x27 server side."""
