"""Engines, which run the tasks of a fit: threads of this machine, a GPU."""
