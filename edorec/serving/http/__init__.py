"""The HTTP server of an exported model."""
