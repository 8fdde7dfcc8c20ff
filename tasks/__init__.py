"""What is learned from a dataset's targets: losses, figures, predictions; PyTorch is imported when it is used."""
