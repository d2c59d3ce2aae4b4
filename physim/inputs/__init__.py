"""What a prediction is about beside the model: a GPU, an engine on it, and a load."""
