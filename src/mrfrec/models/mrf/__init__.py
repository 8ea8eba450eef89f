"""The MRF: the model, what it learns, what it measures, and items that nobody has used."""
