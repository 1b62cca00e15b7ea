"""What statements of queue storage are made with: the quoted schema, lock keys, the channel, and columns named once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from awa_proto.schema import channel, lock_seed, quoted

BODY = "priority, stripe, attempt, max_attempts, run_lease, run_at, created_at, queue, kind, args, extra"
"""The immutable body of a job, which every table has and every move carries."""

FEW_CLOSURES = "k.n >= 0 AND k.n <= 32767"
"""SQL: true of every closure `k`. From a range the planner takes it that a claim has few of them; of a table that is never
analysed it would expect hundreds, and compile the statement for that."""


def body(**changes: str) -> str:
    """SQL: the columns of BODY, some of them said in another way."""
    return ", ".join(changes.get(column, column) for column in BODY.split(", "))


LOGS = ("ready", "claims", "closures")
"""What a segment has a table of each of."""

ASIDE = 64
"""Beside each stripe of a queue, of which there are at most so many, lies one for jobs that are claimed one by one."""


def own_stripe(stripe: str) -> str:
    """SQL: the stripe a job belongs to, which is another one than that of its row while it is aside."""
    return f"({stripe} % {ASIDE}::smallint)"


NO_OUTPUT = "NULL::json AS output, NULL::uuid AS callback_id, NULL::timestamptz AS callback_timeout_at"
NO_LETTER = f"NULL::text AS dlq_reason, NULL::timestamptz AS dlq_at, {NO_OUTPUT}"
"""SQL: the last columns of a job that has none of this."""


def with_key(extra: str, key: str, value: str) -> str:
    """SQL: an extra with one key more, its last. value: SQL of JSON text. All text stays as it is, which jsonb would change."""
    return f"""(SELECT ('{{' || concat_ws(',', string_agg(to_json(e.key)::text || ':' || e.value::text, ','),
                               '"{key}":' || {value}) || '}}')::json FROM json_each({extra}) e WHERE e.key <> '{key}')"""


def _without(*keys: str) -> str:
    return f"""(SELECT ('{{' || string_agg(to_json(e.key)::text || ':' || e.value::text, ',') || '}}')::json
   FROM json_each(extra) e WHERE e.key NOT IN ({", ".join(f"'{key}'" for key in keys)}))"""


AFRESH = f"""CASE WHEN strpos(extra::text, '"callback_result"') > 0 THEN {_without("callback_result")} ELSE extra END"""
"""SQL: the `extra` of a job that begins anew at attempt 0: what a callback came with was for its life before. All other text is
as it was; NULL when nothing is left."""

LETTER_AFRESH = _without("progress", "callback_result")
"""SQL: the same of a dead letter, which loses the progress of its last attempt as well."""

PROGRESSING = with_key("r.extra", "progress", "a.progress::text")
"""SQL: the extra of the ready row `r` with the progress of the row `a` of `attempts`."""


@dataclass(frozen=True)
class Names:
    """The names of one schema.

    schema: as the user gave it. canonical: statements made with them are those of canonical storage.
    """

    schema: str
    canonical: bool = False

    @property
    def prefix(self) -> str:
        """What tells names of statements apart whose text depends on the engine."""
        return "canonical." if self.canonical else ""

    @cached_property
    def s(self) -> str:
        """The schema as SQL, quoted."""
        return quoted(self.schema)

    @cached_property
    def channel(self) -> str:
        """The notification channel."""
        return channel(self.schema)

    def text(self, name: str) -> str:
        """A relation of the schema as a regclass literal."""
        inner = f"{self.s}.{name}".replace("'", "''")
        return f"'{inner}'::regclass"

    @cached_property
    def literal(self) -> str:
        """The quoted name of the schema as an SQL string."""
        return "'" + self.s.replace("'", "''") + "'"

    def of_segment(self, log: str, segment: str) -> str:
        """SQL: the table of a log, as regclass. segment: SQL of its number."""
        prefix = f"{self.s}.{log}_".replace("'", "''")
        return f"('{prefix}' || {segment})::regclass"

    def seed(self, purpose: str) -> int:
        """Seed for hashtextextended(): advisory lock keys of one purpose and schema never meet those of another."""
        return lock_seed(purpose, self.schema)

    @cached_property
    def version(self) -> str:
        """SQL: the ring as a number, version * 256 + open segment, as it is now whatever the snapshot says."""
        return f"pg_sequence_last_value({self.text('ring')})"

    @cached_property
    def open_segment(self) -> str:
        """SQL: the segment that takes new rows."""
        return f"({self.version} & 255)::smallint"

    def notify(self, payload: str) -> str:
        """SQL: tell every worker that listens."""
        channel = self.channel.replace("'", "''")
        return f"pg_notify('{channel}', {payload})"

    def wake(self, queue: str, payload: str | None = None) -> str:
        """SQL: notify the workers of a queue, if one of them announced that it sleeps; see `listening.py`.

        NOTIFY makes commits wait for each other, so it is sent only when it can matter. A sleeper holds the queue's lock
        in share mode; whoever gets it in exclusive mode, for a moment, has found nobody asleep. Neither lock is seen by a
        snapshot or written to the log.
        """
        key = f"hashtextextended({queue}, {self.seed('asleep')})"
        return (
            f"CASE WHEN pg_try_advisory_lock({key}) THEN pg_advisory_unlock({key})::text"
            f" ELSE {self.notify(payload or queue)}::text END"
        )

    def stripe(self, queue: str, number: str) -> str:
        """SQL: the stripe a job goes to, by a number made of its ordering key or of the batch it came with."""
        return (
            f"(SELECT coalesce((SELECT mod(({number}) & 9223372036854775807, q.stripes)::smallint"
            f" FROM {self.s}.queues q WHERE q.queue = {queue} AND q.stripes > 1), 0::smallint))"
        )


def union(parts: Callable[[int], str], segments: tuple[int, ...], indent: str = "  ") -> str:
    """The same query over several segments, each naming the segment's own tables."""
    return f"\n{indent}UNION ALL\n".join(indent + parts(s).strip().replace("\n", f"\n{indent}") for s in segments)
