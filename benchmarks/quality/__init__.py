"""How good the decisions are: policies on recorded traces, simulated."""
