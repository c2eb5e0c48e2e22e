"""Embedding whole files: rows in, vectors out, across interruptions."""
