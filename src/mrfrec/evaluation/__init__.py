"""How well a model guesses what users have that it was not shown."""
