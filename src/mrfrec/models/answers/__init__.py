"""Questions to a model and their answers: each function takes the model as its first argument."""
