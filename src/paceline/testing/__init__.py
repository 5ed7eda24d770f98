"""Contract kits: tests to inherit for your own policies, generators, allocators, engines, stores.

Public are the classes `…Contract` and their helpers in `simulations`. `engine_driver`,
`random_parts` and `snapshots` serve the kits and Paceline's own tests.
"""

import pytest

# So that failing clauses show the compared values, as in a test file.
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
