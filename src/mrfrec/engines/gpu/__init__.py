"""The parts of a fit, and the ranking, on a GPU with PyTorch."""
