"""Training of the shipped weights, and the study behind the shipped trace."""
