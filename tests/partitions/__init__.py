"""Tests of the datasets and of how they are shared out."""
