"""A page in the browser on a model: tables of predictions, and what looks them up."""
