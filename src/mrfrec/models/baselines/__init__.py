"""The models that the paper compares the MRF with."""
