"""The serving model: a folder that is exported from a run, and everything that reads one."""
