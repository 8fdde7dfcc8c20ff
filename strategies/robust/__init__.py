"""Rules that combine a cohort's updates, and tolerate that some are arbitrary; free of PyTorch and Flower."""
