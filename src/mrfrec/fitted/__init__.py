"""The fitted state of a model: what was learned, how it scores, and the file it is kept in."""
