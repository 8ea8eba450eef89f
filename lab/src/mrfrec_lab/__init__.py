"""The evidence behind mrfrec: the paper's models and tables, other libraries, real data."""
