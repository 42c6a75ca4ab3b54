"""Embedding tables: row formats, kernels, optimizers, accounting."""
