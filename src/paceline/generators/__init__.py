"""Generators: where the next config comes from."""
