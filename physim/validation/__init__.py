"""Predictions held against measured runs, and against what else one could fit to them."""
