"""Who leads: the one row of `leader`, which is a lease.

Its holder renews it; when that stops, for whatever reason, it expires and the first who asks gets it. Two may believe at the
same time that they lead, the first for what is left of its lease by its own clock: everything a leader does is right when
two do it at once, and costs no more than being done twice.
"""

from __future__ import annotations

from awa_proto.plan import Op, Plan, Statement
from awa_proto.store.queue.names import Names
from awa_proto.store.upkeep import Leadership


def lead(n: Names, instance: int, lease: float) -> Op[Leadership]:
    """Take the lease when it is free, renew it when it is mine, or learn whose it is.

    Whoever does not get it has written nothing: an UPDATE of a row that does not meet its condition locks none.
    """
    statement = Statement(
        "lead",
        f"""
WITH taken AS (
  UPDATE {n.s}.leader
  SET instance = $1::bigint,
      term = term + (instance IS DISTINCT FROM $1::bigint)::int,
      elected_at = CASE WHEN instance = $1::bigint THEN elected_at ELSE clock_timestamp() END,
      expires_at = clock_timestamp() + $2::float8 * interval '1 s'
  WHERE instance = $1::bigint OR expires_at <= clock_timestamp()
  RETURNING instance, term, expires_at
),
now AS (
  SELECT *, true AS is_mine FROM taken
  UNION ALL
  SELECT instance, term, expires_at, false FROM {n.s}.leader WHERE NOT EXISTS (SELECT FROM taken)
)
SELECT instance, term, is_mine,
       CASE WHEN expires_at > clock_timestamp() THEN extract(epoch FROM expires_at - clock_timestamp())::float8 ELSE 0 END
FROM now""",
        (instance, lease),
    )

    def plan() -> Plan[Leadership]:
        rows = yield statement
        if not rows:  # somebody deleted the row
            yield Statement(
                "lead.row", f"INSERT INTO {n.s}.leader DEFAULT VALUES ON CONFLICT (one) DO NOTHING RETURNING 1"
            )
            rows = yield statement
        holder, term, is_mine, left = rows[0] if rows else (None, 0, False, 0.0)
        return Leadership(holder, is_mine, term, left)

    return Op("lead", plan, safe_to_retry=True)


def resign(n: Names, instance: int) -> Op[None]:
    """The lease is free, if it was mine."""

    def plan() -> Plan[None]:
        yield Statement(
            "resign",
            f"UPDATE {n.s}.leader SET instance = NULL, expires_at = '-infinity' WHERE instance = $1::bigint",
            (instance,),
        )

    return Op("resign", plan, safe_to_retry=True)
