"""Readers of a log or a state: values and sentences come out, nothing is decided."""
