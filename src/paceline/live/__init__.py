"""The live view of a running study in a terminal."""
