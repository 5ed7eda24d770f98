"""A study as it goes: a live picture on a terminal, lines elsewhere."""
