"""The same workload for Paceline's local engine and its peers, one module each."""
