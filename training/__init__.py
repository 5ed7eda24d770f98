"""What is trained here and shipped as weights."""
