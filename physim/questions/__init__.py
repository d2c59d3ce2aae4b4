"""Questions about a deployment: how much it serves, which is best, and what limits it."""
