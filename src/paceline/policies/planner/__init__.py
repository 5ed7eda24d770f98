"""The planner: one index for every use of a slot, from a small model of the study."""
