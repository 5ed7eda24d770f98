"""Quality of decisions: policies simulated on recorded traces."""
