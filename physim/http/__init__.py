"""Predictions over HTTP: JSON of the names that Python has."""
