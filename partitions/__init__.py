"""Datasets and how they are shared out over clients, on flwr-datasets partitioners."""
