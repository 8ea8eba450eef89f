"""Tables in, tables out, models on disk."""
