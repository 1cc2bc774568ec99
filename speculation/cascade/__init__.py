"""A cascade: models that write ahead of the target, each in a process of its own, each ahead of the next bigger one."""
