"""Trials of a recipe's methods, proposed by Optuna."""
