"""Speed of the suite against bare PyTorch, stock Flower and pfl-research, measured side by side in one run."""
