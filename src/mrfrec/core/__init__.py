"""The paper's algorithms on arrays, without ids, files or tables."""
