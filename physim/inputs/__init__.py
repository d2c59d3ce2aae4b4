"""What a prediction is about: a model, a GPU and how the one is deployed on the other."""
