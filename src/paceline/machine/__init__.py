"""The machine: the study's state as a fold of its log, and `handle(event) -> decisions`.

Knows the plan, and meets policy, generator and allocator only through ports. Touches no clock,
disk, network or thread.
"""
