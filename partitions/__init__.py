"""Datasets, and how they are divided among clients, with flwr-datasets partitioners."""
