"""The same work for Paceline's local engine and for its peers, one module for each of them."""
