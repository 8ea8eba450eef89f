"""What comes in, and the names of things: ids, interactions, events, the catalogue."""
