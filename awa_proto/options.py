"""Options of an enqueue: their limits, and the one place where they are checked.

`Options.of` checks keywords once; `new_job` makes a `NewJob` of args, so a batch of a million pays for its options
once. Everything is refused before anything is written, by a ValidationError that names the field and the limit.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, TypedDict, Unpack

from awa_proto import args as args_
from awa_proto import extra as extras
from awa_proto.args import JobArgs
from awa_proto.error_text import describe
from awa_proto.errors import ValidationError
from awa_proto.outcome import Seconds, seconds
from awa_proto.store import NewJob
from awa_proto.task import Task
from awa_proto.unique import UniqueFields, Uniqueness, UniqueOpts

MAX_NAME: Final = 200
"""Most characters of a queue or a kind."""
MAX_PRIORITY: Final = 4
MAX_ATTEMPTS: Final = 1000
MAX_TAGS: Final = 20
MAX_METADATA_BYTES: Final = 65536
LARGE_ARGS_BYTES: Final = 65536
"""Args above this are enqueued with a warning: every claim carries them."""
DEFAULT_QUEUE: Final = "default"
_INFINITIES: Final = (datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC))
"""What asyncpg writes as -infinity and infinity, and no job is due at."""
_RESERVED: Final = ("awa:", "_awa_")


class InsertOpts(TypedDict, total=False):
    """The keywords of every enqueue. A missing one, and None, mean the default.

    kind: instead of the one that a task of the class of the args is registered for, or else the class's own.
    queue: else the kind's own, else "default". priority: 1 (first) to 4; 2. max_attempts: 1 to 1000; 25. run_at: aware
    datetime; now. deadline_duration: seconds or timedelta that an attempt may run; what the queue of the worker says.
    metadata: JSON object of at most 64 KiB. tags: at most 20. unique_opts: what makes the job the same as another one, of
    which there is then only one; `{}` means its kind and args. ordering_key: jobs of one key go to one stripe of a striped
    queue. notify: False lets sleeping workers find it by polling; True.
    """

    kind: str | None
    queue: str | None
    priority: int | None
    max_attempts: int | None
    run_at: datetime | None
    deadline_duration: Seconds | None
    metadata: Mapping[str, Any] | None
    tags: Sequence[str] | None
    unique_opts: UniqueOpts | UniqueFields | None
    ordering_key: str | bytes | None
    notify: bool | None


@dataclass(frozen=True, slots=True)
class EnqueueRequest:
    """Args with options of their own, for `insert_many`, `enqueue_many`, and follow-ups.

    `EnqueueRequest(SendEmail("a@b.c")).queue("email").priority(1)`: each method returns a new request. Nothing is
    checked before it is enqueued.
    """

    args: JobArgs
    options: InsertOpts = field(default_factory=InsertOpts)

    def kind(self, kind: str, /) -> EnqueueRequest:
        """Another kind than that of the class of the args."""
        return self._with({"kind": kind})

    def queue(self, queue: str, /) -> EnqueueRequest:
        """The queue, at most 200 characters."""
        return self._with({"queue": queue})

    def priority(self, priority: int, /) -> EnqueueRequest:
        """1 (first) to 4."""
        return self._with({"priority": priority})

    def max_attempts(self, max_attempts: int, /) -> EnqueueRequest:
        """1 to 1000."""
        return self._with({"max_attempts": max_attempts})

    def run_at(self, run_at: datetime, /) -> EnqueueRequest:
        """When it is due; an aware datetime."""
        return self._with({"run_at": run_at})

    def deadline_duration(self, duration: Seconds, /) -> EnqueueRequest:
        """Seconds (or a timedelta) that an attempt may run."""
        return self._with({"deadline_duration": duration})

    def metadata(self, metadata: Mapping[str, Any], /) -> EnqueueRequest:
        """A JSON object of at most 64 KiB."""
        return self._with({"metadata": metadata})

    def tags(self, *tags: str) -> EnqueueRequest:
        """At most 20."""
        return self._with({"tags": tags})

    def unique(
        self, opts: UniqueOpts | UniqueFields | None = None, /, **fields: Unpack[UniqueFields]
    ) -> EnqueueRequest:
        """One such job at a time: `.unique()`, `.unique(UniqueOpts(by_queue=True))` or `.unique(by_queue=True)`."""
        if isinstance(opts, UniqueOpts):
            return self._with({"unique_opts": dataclasses.replace(opts, **fields)})
        return self._with({"unique_opts": {**(opts or {}), **fields}})

    def ordering_key(self, key: str | bytes, /) -> EnqueueRequest:
        """Jobs of one key go to one stripe of a striped queue."""
        return self._with({"ordering_key": key})

    def notify(self, notify: bool, /) -> EnqueueRequest:
        """False lets sleeping workers find it by polling."""
        return self._with({"notify": notify})

    def with_opts(self, **options: Unpack[InsertOpts]) -> EnqueueRequest:
        """These options in place of all that were said before, also by the other methods."""
        return dataclasses.replace(self, options=options)

    def _with(self, option: InsertOpts) -> EnqueueRequest:
        return dataclasses.replace(self, options={**self.options, **option})


@dataclass(frozen=True, slots=True)
class Options:
    """Checked options of an enqueue, ready to become part of many jobs."""

    kind: str | None
    queue: str | None
    priority: int
    max_attempts: int
    run_at: datetime | None
    extra: str | None
    ordering: int | None
    notify: bool
    unique: Uniqueness | None
    due: datetime | None

    @classmethod
    def of(cls, options: InsertOpts, now: Callable[[], datetime], traceparent: str | None = None) -> Options:
        """Check every option. Raises ValidationError naming the first one that is refused, and its limit.

        now: asked for jobs that are unique within a period and say no time.
        traceparent: the trace context of the call, which its metadata get unless they say another one.
        """
        if not isinstance(options, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValidationError("options", f"a mapping is needed, not {type(options).__name__}")
        if unknown := options.keys() - InsertOpts.__annotations__.keys():
            raise ValidationError(min(map(str, unknown))[:MAX_NAME], "there is no such option")
        get = options.get
        kind, queue, deadline = get("kind"), get("queue"), get("deadline_duration")
        priority, max_attempts, tags, notify = get("priority"), get("max_attempts"), get("tags"), get("notify")
        if not isinstance(notify, bool) and notify is not None:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValidationError("notify", f"True or False is needed, not {type(notify).__name__}")
        run_at, unique = instant("run_at", get("run_at")), get("unique_opts")
        metadata = _metadata(get("metadata"))
        extra = extras.encode(
            metadata=metadata,
            tags=() if tags is None else _tags(tags),
            deadline=None if deadline is None else positive_seconds("deadline_duration", deadline),
        )
        if traceparent is not None and (metadata is None or extras.TRACEPARENT not in metadata):
            extra = extras.with_traceparent(extra, traceparent)
        return cls(
            kind=None if kind is None else name("kind", kind),
            queue=None if queue is None else name("queue", queue),
            priority=2 if priority is None else whole("priority", priority, 1, MAX_PRIORITY),
            max_attempts=25 if max_attempts is None else whole("max_attempts", max_attempts, 1, MAX_ATTEMPTS),
            run_at=run_at,
            extra=extra,
            ordering=_ordering(get("ordering_key")),
            notify=notify is not False,
            unique=None if unique is None else Uniqueness.of(unique),
            due=run_at if run_at is not None or unique is None else now(),
        )

    def new_job(self, args: JobArgs, tasks: Mapping[str, Task]) -> NewJob:
        """The job of args under these options, validated and encoded.

        tasks: the known kinds: their queues, and what they must be able to read. Raises ValidationError.
        """
        return self.maker(type(args), tasks)(args)

    def maker(self, args_type: type[Any], tasks: Mapping[str, Task]) -> Callable[[Any], NewJob]:
        """What makes the jobs of args of exactly this type. A batch asks once for each type it holds."""
        encode = args_.encoder(args_type)
        if issubclass(args_type, Mapping):
            return lambda args: self._job(args_type, self.kind or _kind_in(args), encode, tasks)(args)
        return self._job(args_type, self.kind or kind_for(args_type, tasks), encode, tasks)

    def _job(
        self, args_type: type[Any], kind: str, encode: Callable[[Any], str], tasks: Mapping[str, Task]
    ) -> Callable[[Any], NewJob]:
        task = tasks.get(kind)
        queue = self.queue or (task and task.queue) or DEFAULT_QUEUE
        reads = task.decode if task is not None and task.args_type not in {None, args_type} else None
        priority, max_attempts, run_at, extra, ordering = (
            self.priority, self.max_attempts, self.run_at, self.extra, self.ordering
        )  # fmt: skip

        def make(args: Any) -> NewJob:
            text = encode(args)
            if reads is not None:
                reads(text)
            return NewJob(kind, queue, text, priority, max_attempts, run_at, extra, ordering)

        unique, due = self.unique, self.due
        if unique is None or due is None:
            return make

        def make_unique(args: Any) -> NewJob:
            job = make(args)
            own = unique.of_job(kind, queue, job.args, due)
            return job._replace(unique=own, extra=extras.with_unique(extra, *own))

        return make_unique


def name(field: str, value: object) -> str:
    """A queue or a kind: text of 1 to 200 characters that PostgreSQL can hold."""
    checked = text(field, value)
    if not 1 <= len(checked) <= MAX_NAME:
        raise ValidationError(field, f"has {len(checked)} characters; 1 to {MAX_NAME} are allowed")
    return checked


def text(field: str, value: object) -> str:
    """Text that PostgreSQL can hold: no NUL, no lone surrogate."""
    if not isinstance(value, str):
        raise ValidationError(field, f"text is needed, not {type(value).__name__}")
    if "\0" in value:
        raise ValidationError(field, "contains a NUL character, which PostgreSQL cannot hold")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ValidationError(field, "contains a lone surrogate, which UTF-8 cannot hold") from None
    return value if type(value) is str else str.__str__(value)  # what an enum member is, not what it prints


def whole(field: str, value: object, least: int, most: int) -> int:
    """A whole number within limits; True and False are none."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValidationError(field, f"a whole number is needed, not {type(value).__name__}")
    if not least <= value <= most:
        raise ValidationError(field, f"{value if abs(value) < 10**20 else 'the number'} is outside {least} … {most}")
    return int(value)


def flag(field: str, value: object) -> bool:
    """True or False, and nothing that is only taken for one."""
    if not isinstance(value, bool):
        raise ValidationError(field, f"True or False is needed, not {type(value).__name__}")
    return value


def positive_seconds(field: str, value: object) -> float:
    """A duration as seconds, up to a hundred years; none at all is refused."""
    found = seconds(field, value)
    if found == 0:
        raise ValidationError(field, "0 seconds is no time at all")
    return found


def instant(field: str, value: object) -> datetime | None:
    """An aware datetime, in UTC; None stays None."""
    if value is None:
        return None
    if not isinstance(value, datetime):
        raise ValidationError(field, f"a datetime is needed, not {type(value).__name__}")
    try:
        is_aware = value.utcoffset() is not None
        found = value.astimezone(UTC) if is_aware else None
    except OverflowError:
        raise ValidationError(field, f"{value:%Y-%m-%d} is outside the years 1 … 9999 in UTC") from None
    except Exception as error:
        raise ValidationError(field, f"its time zone does not work: {describe(error)}") from error
    if found is None:
        raise ValidationError(
            field, f"{value.isoformat()} has no time zone; use datetime.now(UTC) or another aware datetime"
        )
    if found in _INFINITIES:
        raise ValidationError(field, "is the first or the last moment of the years 1 … 9999, which means infinity")
    return found


def kind_for(args_type: type[Any], tasks: Mapping[str, Task]) -> str:
    """What a class is registered for, when that is one kind; else the kind of the class itself."""
    registered = [kind for kind, task in tasks.items() if task.args_type is args_type]
    if len(registered) > 1:
        kinds = " and ".join(repr(kind) for kind in registered[:5])
        raise ValidationError("kind", f"{args_type.__name__} is registered for {kinds}: say which with kind=")
    return registered[0] if registered else name("kind", args_.kind_of(args_type))


def _kind_in(args: Mapping[str, object]) -> str:
    kind = args_.kind_in(args)
    if kind is None:
        raise ValidationError("kind", 'a mapping needs kind=, or a key "kind" that is text')
    return name("kind", kind)


def _metadata(value: object) -> dict[str, Any] | None:
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise ValidationError("metadata", f"a mapping is needed, not {type(value).__name__}")
    if not value:
        return None
    for key in value:
        if isinstance(key, str) and key.startswith(_RESERVED) and key != extras.TRACEPARENT:
            raise ValidationError(
                "metadata", f"the key {key[:MAX_NAME]!r} is reserved: keys may not begin with awa: or _awa_"
            )
    written, found = args_.to_object("metadata", value)
    size = extras.size_of(written)
    if size > MAX_METADATA_BYTES:
        raise ValidationError("metadata", f"has {size} bytes of JSON; {MAX_METADATA_BYTES} are allowed")
    return found


def _tags(value: object) -> list[str]:
    if isinstance(value, (str, bytes)) or not isinstance(value, (Sequence, set, frozenset)):
        raise ValidationError("tags", f"a sequence of text is needed, not {type(value).__name__}")
    if len(value) > MAX_TAGS:
        raise ValidationError("tags", f"has {len(value)} tags; {MAX_TAGS} are allowed")
    return [text("tags", tag) for tag in value]


def _ordering(key: object) -> int | None:
    """The first 63 bits of the SHA-256 of the key, the same in every process and in SQL. The store takes them modulo the number
    of stripes.
    """
    if key is None:
        return None
    data = key if isinstance(key, (bytes, bytearray)) else text("ordering_key", key).encode()
    return int.from_bytes(hashlib.sha256(data).digest()[:8], "big") >> 1
