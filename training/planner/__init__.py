"""Training of the planner's network on simulated studies."""
