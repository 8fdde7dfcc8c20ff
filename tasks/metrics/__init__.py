"""Metrics, by what they are computed from; PyTorch and scikit-learn are imported when they are used."""
