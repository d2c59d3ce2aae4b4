"""The time of one engine step: components, their lowering from a model, and their composition."""
