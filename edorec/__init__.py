"""edorec trains click-through-rate models inside an embedding-memory budget."""

__version__ = "0.1.0"
