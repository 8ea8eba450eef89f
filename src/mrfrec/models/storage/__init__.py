"""Model files, and models that are fitted again to more or fewer events."""
