"""Input data and names: ids, interactions, events and the catalogue."""
