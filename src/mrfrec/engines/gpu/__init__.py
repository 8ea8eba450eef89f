"""The parts of a fit, and the ranking, that a GPU does faster: PyTorch lives here."""
