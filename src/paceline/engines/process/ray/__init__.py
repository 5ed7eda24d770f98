"""Worker processes and devices of a Ray cluster."""
