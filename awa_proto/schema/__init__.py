"""The database schema: numbered forward-only SQL files, and the Op that applies them.

The Op is one transaction under a transaction-scoped advisory lock, so ten processes may start together: one migrates,
nine find that there is nothing to do. The files say `{schema}` where the quoted schema name stands, and `{schema_text}`
where it stands inside a string; `{channel_text}` is the notification channel inside a string, `{asleep}` the seed of the locks
that sleepers hold, `{last_segment}` the number of the last segment of a new ring.
"""

from __future__ import annotations

import re
import unicodedata
from functools import cache
from hashlib import blake2b
from importlib.resources import files

from awa_proto.errors import SchemaNotMigrated, ValidationError
from awa_proto.plan import Op, Plan, Statement
from awa_proto.schema.ring import SEGMENTS, grow

_LOCK = 0x617761_6D696772  # "awa" "migr"


def quoted(schema: str) -> str:
    """The schema name as SQL. Raises ValidationError when PostgreSQL cannot have such a name."""
    if not schema or "\0" in schema or len(schema.encode(errors="replace")) > 63:
        raise ValidationError("schema", f"{schema[:70]!r} is empty, has a NUL, or is longer than 63 bytes")
    try:
        schema.encode()
    except UnicodeEncodeError:
        raise ValidationError("schema", "has a lone surrogate") from None
    if any(unicodedata.category(c) == "Cc" for c in schema):
        raise ValidationError("schema", f"{schema!r} has a control character, which no log or message would show")
    if schema.startswith("pg_"):
        raise ValidationError("schema", f"{schema!r}: PostgreSQL keeps names beginning with pg_ for itself")
    return '"' + schema.replace('"', '""') + '"'


@cache
def migrations() -> tuple[tuple[int, str, str], ...]:
    """(version, name, SQL template) of every migration, oldest first."""
    scripts = (f for f in files(__name__).iterdir() if f.name.endswith(".sql"))
    return tuple(sorted((int(f.name[:4]), f.name[5:-4], f.read_text("utf-8")) for f in scripts))


def latest() -> int:
    """The version this code needs."""
    return migrations()[-1][0]


def script(schema: str = "awa", segments: int = SEGMENTS) -> str:
    """All migrations as one SQL text, for people who apply them by hand. segments: of the ring."""
    prefix = quoted(schema)
    parts = ["BEGIN;", *(f"{statement};" for statement in _preparation(prefix))]
    for version, name, template in migrations():
        parts += [
            f"\n-- {version:04} {name}",
            *(f"{statement};" for statement in statements(template, prefix, segments)),
        ]
        parts.append(f"INSERT INTO {prefix}.migrations (version, name) VALUES ({version}, '{name}');")
    return "\n".join([*parts, "COMMIT;", ""])


def channel(schema: str) -> str:
    """The notification channel: `awa:schema`, shortened to a hash where that passes 63 bytes."""
    plain = f"awa:{schema}"
    return plain if len(plain.encode()) < 64 else f"awa:{blake2b(schema.encode(), digest_size=16).hexdigest()}"


def lock_seed(purpose: str, schema: str) -> int:
    """Seed for hashtextextended(): advisory lock keys of one purpose and schema never meet those of another."""
    return int.from_bytes(blake2b(f"{purpose} {schema}".encode(), digest_size=8).digest(), "big", signed=True)


def statements(template: str, prefix: str, segments: int = SEGMENTS) -> list[str]:
    """The statements of a file: each ends with a line that ends in `;` outside of `$$ … $$`. segments: of a new ring."""
    found: list[str] = []
    lines: list[str] = []
    inside = False
    for line in template.splitlines():
        if line.startswith("--") and not inside:
            continue
        lines.append(line)
        inside ^= line.count("$$") % 2 == 1
        if line.rstrip().endswith(";") and not inside:
            found.append("\n".join(lines).strip().removesuffix(";"))
            lines = []
    schema = prefix[1:-1].replace('""', '"')
    names = {
        "{schema}": prefix,
        "{schema_text}": prefix.replace("'", "''"),
        "{channel_text}": channel(schema).replace("'", "''"),
        "{asleep}": str(lock_seed("asleep", schema)),
        "{last_segment}": str(segments - 1),
        "$$": _dollars(prefix),
    }
    return [re.sub(r"{[a-z_]+}|\$\$", lambda m: names.get(m[0], m[0]), s) for s in found]


def _dollars(prefix: str) -> str:
    """A quote for a body that has the name in it, which may have a $$ of its own."""
    return f"$awa_{blake2b(prefix.encode(), digest_size=8).hexdigest()}$"


def _preparation(prefix: str) -> tuple[str, ...]:
    return (
        f"CREATE SCHEMA IF NOT EXISTS {prefix}",
        f"""CREATE TABLE IF NOT EXISTS {prefix}.migrations (
  version int PRIMARY KEY,
  name text NOT NULL,
  applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
)""",
    )


def migrate(schema: str = "awa", segments: int | None = None) -> Op[int]:
    """Bring the schema to the version of this code; the result is how many migrations were applied.

    segments: of the ring, to which it grows; None: as many as there are, or `SEGMENTS`.

    Raises SchemaNotMigrated when the database is newer than this code, ValidationError when the ring has more segments; both
    before anything is written.
    """
    prefix = quoted(schema)

    def plan() -> Plan[int]:
        yield Statement("migrate.lock", "SELECT pg_advisory_xact_lock($1::bigint)", (_LOCK,))
        # looked up, not CREATE IF NOT EXISTS: that one needs the right to create even where there is nothing to do
        known = yield Statement(
            "migrate.known",
            "SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1::text), to_regclass($2::text) IS NOT NULL",
            (schema, f"{prefix}.migrations"),
        )
        for number, (exists, statement) in enumerate(zip(known[0], _preparation(prefix), strict=True), 1):
            if not exists:
                yield Statement(f"migrate.prepare.{number}", statement)
        applied = yield Statement("migrate.version", f"SELECT coalesce(max(version), 0)::int FROM {prefix}.migrations")
        version: int = applied[0][0]
        refuse_newer(schema, version)
        missing = False
        if version and segments is not None:
            there = yield Statement("migrate.segments", f"SELECT count(*)::int FROM {prefix}.segments")
            if segments < there[0][0]:
                raise ValidationError(
                    "segments", f"{segments} are fewer than the {there[0][0]} there are, and a ring only grows"
                )
            missing = segments > there[0][0]
        pending = [m for m in migrations() if m[0] > version]
        for number, name, template in pending:
            for part, statement in enumerate(statements(template, prefix, segments or SEGMENTS), 1):
                yield Statement(f"migrate.{number:04}.{part}", statement)
            yield Statement(
                "migrate.record",
                f"INSERT INTO {prefix}.migrations (version, name) VALUES ($1::int, $2::text)",
                (number, name),
            )
        if missing and segments is not None:
            text = prefix.replace("'", "''")
            yield Statement(f"migrate.grow.{segments}", grow(prefix, text, _dollars(prefix), segments))
        return len(pending)

    return Op("migrate", plan, atomic=True, safe_to_retry=True, timeout=600.0)


def refuse_newer(schema: str, version: int) -> None:
    """Raise SchemaNotMigrated when the database is newer than the code."""
    if version > latest():
        raise SchemaNotMigrated(
            f"schema {schema!r} is at version {version}, this code knows {latest()}: upgrade the package awa-queue"
        )
