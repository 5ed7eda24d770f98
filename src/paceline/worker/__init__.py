"""The side inside the user's process: the trial handle, its checkpoints, its channel to the driver.

Light on purpose: needs the standard library and msgspec, and looks at numpy and torch only where
the user's own code has imported them.
"""
