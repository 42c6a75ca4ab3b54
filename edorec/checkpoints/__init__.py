"""Checkpoints of a run, from which it goes on exactly as if it had never stopped."""
