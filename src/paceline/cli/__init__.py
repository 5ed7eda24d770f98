"""The command line. Nothing is imported before a command asks for it."""
