"""The plan: schedules, settings, and the radix tree in which trials share what they have in common.

Knows epochs and settings. Does not know policies, slots or the time.
"""
