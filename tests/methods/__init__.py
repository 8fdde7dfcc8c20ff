"""Tests of methods, both sides together; the first line of each file names its methods."""
