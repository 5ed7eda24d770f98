"""Contract kits and probes: shipped, so that whoever plugs in can test what they plug in."""

import pytest

# Failing clauses then show what they compared, like tests of one's own.
pytest.register_assert_rewrite(
    *(
        f"paceline.testing.{kit}"
        for kit in (
            "allocators",
            "curves",
            "engines",
            "generators",
            "policies",
            "storages",
            "stores",
        )
    )
)
