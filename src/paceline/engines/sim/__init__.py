"""The simulator: virtual slots, virtual time, recorded or synthetic training."""
