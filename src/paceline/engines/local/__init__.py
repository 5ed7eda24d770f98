"""Real training on this machine: slots are its cores or GPUs, attempts are processes."""
