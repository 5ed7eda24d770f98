"""Paceline: the best model your hardware can train before the deadline."""
