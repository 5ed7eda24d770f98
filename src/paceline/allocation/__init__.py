"""Allocators: demands and capacity in, widths out."""
