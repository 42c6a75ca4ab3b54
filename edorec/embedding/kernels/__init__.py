"""Look-up and update of table rows: one semantics, two implementations."""
