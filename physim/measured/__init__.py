"""Measured runs: readers of what load generators and engines write."""
