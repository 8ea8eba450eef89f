"""Reproduce the paper's tables: published beside measured numbers."""
