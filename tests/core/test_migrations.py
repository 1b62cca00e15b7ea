"""The numbers of the migrations."""

from awa_proto.schema import latest, migrations


def test_migrations_are_numbered_one_after_the_other() -> None:
    """Two of one number, from two branches, would leave every database without one of them."""
    numbers = [version for version, _, _ in migrations()]
    assert numbers == list(range(1, latest() + 1))
