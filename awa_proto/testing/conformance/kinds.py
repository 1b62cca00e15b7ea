"""Kinds: what workers said of them last, and when."""

from __future__ import annotations

from awa_proto.testing.conformance.kit import Kit

ONE, OTHER = '{"queue":"a"}', '{"queue":"b","args":{"name":"X"}}'


async def what_workers_say_of_kinds_is_listed_by_name(kit: Kit) -> None:
    """Until one says something else."""
    await kit.run(kit.store.put_kinds({"b": ONE, "a": ONE}))
    await kit.run(kit.store.put_kinds({"b": OTHER, "c": "{}"}))
    await kit.run(kit.store.put_kinds({}))
    found = await kit.run(kit.store.list_kinds())
    assert [(info.kind, info.descriptor) for info in found] == [
        ("a", {"queue": "a"}), ("b", {"queue": "b", "args": {"name": "X"}}), ("c", {}),
    ]  # fmt: skip


async def a_kind_of_which_the_same_is_said_has_not_changed(kit: Kit) -> None:
    """When it changed stays."""
    await kit.run(kit.store.put_kinds({"a": ONE}))
    (before,) = await kit.run(kit.store.list_kinds())
    await kit.run(kit.store.put_kinds({"a": ONE}))
    (after,) = await kit.run(kit.store.list_kinds())
    assert after.changed_at == before.changed_at
    await kit.run(kit.store.put_kinds({"a": OTHER}))
    (changed,) = await kit.run(kit.store.list_kinds())
    assert changed.changed_at > before.changed_at


async def kinds_that_nobody_speaks_of_are_forgotten(kit: Kit) -> None:
    """After as many seconds as one says."""
    await kit.run(kit.store.put_kinds({"a": ONE, "b": ONE}))
    assert await kit.run(kit.store.prune_kinds(3600.0)) == 0
    assert await kit.run(kit.store.prune_kinds(-1.0)) == 2
    assert await kit.run(kit.store.list_kinds()) == []
