"""Kinds: what workers say of the jobs they run, and when one said so last."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC

from awa_proto.plan import Op, Plan, Rows, Statement
from awa_proto.store import KindInfo
from awa_proto.store.queue.names import Names


def put_kinds(n: Names, descriptors: Mapping[str, str]) -> Op[None]:
    """Say of kinds what they are, as JSON text. Writes a row only where it says something else, or an hour has passed."""
    kinds = sorted(descriptors)

    def plan() -> Plan[None]:
        if kinds:
            yield Statement(
                "put_kinds",
                f"""
INSERT INTO {n.s}.kinds AS k (kind, descriptor)
SELECT w.kind, w.descriptor::json FROM unnest($1::text[], $2::text[]) w(kind, descriptor) ORDER BY w.kind
ON CONFLICT (kind) DO UPDATE
SET descriptor = excluded.descriptor, seen_at = excluded.seen_at,
    changed_at = CASE WHEN k.descriptor::text = excluded.descriptor::text THEN k.changed_at ELSE excluded.changed_at END
WHERE k.descriptor::text <> excluded.descriptor::text OR k.seen_at < excluded.seen_at - interval '1 hour'""",
                (kinds, [descriptors[kind] for kind in kinds]),
            )

    return Op("put_kinds", plan, safe_to_retry=True)


def list_kinds(n: Names) -> Op[list[KindInfo]]:
    """All of them, by name."""

    def plan() -> Plan[list[KindInfo]]:
        rows: Rows = yield Statement(
            "list_kinds", f"SELECT kind, descriptor::text, changed_at, seen_at FROM {n.s}.kinds ORDER BY kind"
        )
        return [
            KindInfo(kind, json.loads(said), changed.astimezone(UTC), seen.astimezone(UTC))
            for kind, said, changed, seen in rows
        ]

    return Op("list_kinds", plan, safe_to_retry=True)


def prune_kinds(n: Names, older_than: float) -> Op[int]:
    """Forget kinds that no worker has spoken of for so many seconds."""

    def plan() -> Plan[int]:
        rows = yield Statement(
            "prune_kinds",
            f"DELETE FROM {n.s}.kinds WHERE seen_at < clock_timestamp() - $1::float8 * interval '1 s' RETURNING 1",
            (older_than,),
        )
        return len(rows)

    return Op("prune_kinds", plan, safe_to_retry=True)
