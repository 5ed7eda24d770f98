"""The words everything else is said in: values, events, decisions, ports, errors, streams, codec.

Knows the standard library and msgspec. Knows no clock, disk, network, thread or algorithm.
"""
