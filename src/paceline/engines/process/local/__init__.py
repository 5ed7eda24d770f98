"""Worker processes and devices of this machine."""
