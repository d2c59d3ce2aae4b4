"""Corrections fitted to measured runs, and how far to trust them."""
