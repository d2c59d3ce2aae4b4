"""What mixes the tokens of a layer: attention and what stands for it, a module for each kind."""
