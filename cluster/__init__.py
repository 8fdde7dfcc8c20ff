"""Clusters of machines: runs on Ray that survive the loss of machines, and the files that start a cluster."""
