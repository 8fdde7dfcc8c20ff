"""Figures of runs for TensorBoard, MLflow, Weights & Biases, or a tracker of your own."""
