"""The paper's tables, published beside measured."""
