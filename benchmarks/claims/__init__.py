"""What is claimed of each technique, against its baseline: one module a row."""
