"""The paper: arrays in, arrays out. Nothing in here knows about ids, files or tables."""
