"""Who runs the core: the threads of this machine."""
