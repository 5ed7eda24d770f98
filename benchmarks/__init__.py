"""Measurements of Paceline, alone and beside its peers."""
