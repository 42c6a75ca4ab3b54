"""Models: what the user may ask for and how it is put together."""
