"""Engines carry decisions out and bring facts back. The loop is the same for all of them."""
