"""The pre-trained curve model: prior, network, training, export. Needs torch."""
