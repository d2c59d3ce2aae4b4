"""What a model is: read from its configuration, layer by layer."""
