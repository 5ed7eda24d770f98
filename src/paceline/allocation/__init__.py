"""Allocators: demands and capacity in, widths out. And speed-up: what a width is worth."""
