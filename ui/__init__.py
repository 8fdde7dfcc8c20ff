"""Runs in a browser: pages that a small server makes from run folders, which it only reads."""
