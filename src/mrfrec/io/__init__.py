"""Reading tables, writing results, and the model file."""
