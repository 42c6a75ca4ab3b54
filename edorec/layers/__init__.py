"""Parts of the dense model; they know nothing of tables, tasks or configuration."""
