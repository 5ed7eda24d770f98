"""Contract kits and probes: shipped, so that whoever plugs in can test what they plug in."""
