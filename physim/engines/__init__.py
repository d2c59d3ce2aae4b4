"""Serving engines: profiles of their versions, and a file for each with what it alone does."""
