"""The MRF: the field, the model, what it learns, what it measures, and items that nobody has used."""
