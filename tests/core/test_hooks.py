"""The queue of events on their way to hooks: what is called when, and what is not waited for."""

from __future__ import annotations

import copy
import heapq
import logging
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count
from random import Random
from typing import Any

import pytest

from awa_proto import events
from awa_proto.args import decoder
from awa_proto.errors import ValidationError
from awa_proto.events import AnyEvent
from awa_proto.hooks import AT_ONCE, MOST_WAITING, SAID_EVERY, ArgsNotRead, Hook, HookQueue, RunHook
from awa_proto.job import Attempt, JobRow, JobState
from awa_proto.registry import Registry
from awa_proto.worker.events import Emit
from awa_proto.worker.happened import started

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@dataclass
class SendEmail:
    to: str


@dataclass
class Receipt:
    number: int


def event(id: int = 1, *, args: str = '{"to":"a"}', kind: str = "k") -> events.Completed[Any]:
    row = JobRow(id, kind, "q", args, JobState.COMPLETED, 2, 1, 9, 25, NOON, NOON)
    return events.Completed(row, None, timedelta(seconds=1.5))


def hook(name: str = "hook", args_type: type[Any] | None = None, function: Any = id) -> Hook:
    return Hook("k", args_type, function, decoder(args_type), is_async=False, name=name)


class Bench:
    """A queue on the bench: what it says to run is under way until the test ends it."""

    def __init__(self, *hooks: Hook) -> None:
        self.queue = HookQueue({"k": hooks})
        self.now = 100.0
        self.running: list[RunHook] = []

    @property
    def at_work(self) -> list[tuple[int, str]]:
        return [(run.event.job.id, run.hook.name) for run in self.running]

    @property
    def said(self) -> list[Emit]:
        return list(self.queue.said)

    def happened(self, event: AnyEvent, context: object = None) -> None:
        self.running += self.queue.happened((event,), self.now, context)

    def ended(self, error: BaseException | None = None, *, which: int = 0) -> None:
        run = self.running.pop(which)
        if error is not None:
            self.queue.raised(run, error, self.now)
        if (following := self.queue.ended(run)) is not None:
            self.running.append(following)

    def call(self) -> None:
        """Call the first one, and say how it ended."""
        try:
            self.running[0].call()
        except Exception as error:  # noqa: BLE001  whatever the hook does
            self.ended(error)
        else:
            self.ended()


# order


def test_hooks_of_an_event_are_called_one_after_the_other_as_they_were_registered() -> None:
    bench = Bench(hook("a"), hook("b"))
    bench.happened(event(1))
    assert bench.at_work == [(1, "a")]
    bench.ended()
    assert bench.at_work == [(1, "b")]
    bench.ended()
    assert bench.at_work == []
    assert bench.queue.running == 0


def test_an_event_of_a_kind_without_hooks_takes_no_place() -> None:
    bench = Bench(hook())
    bench.happened(event(1, kind="other"))
    assert (bench.at_work, bench.queue.running) == ([], 0)


def test_hooks_that_are_registered_while_an_event_is_handled_hear_of_the_next_one() -> None:
    registry = Registry()
    registry.on_event("k")(id)
    queue = HookQueue(registry.hooks)
    (first,) = queue.happened([event(1)], 0.0, None)
    registry.on_event("k")(len)
    assert (queue.ended(first), queue.running) == (None, 0)


# bounds


def test_so_many_events_are_handled_at_a_time_and_the_others_wait_in_order() -> None:
    bench = Bench(hook())
    for id in range(AT_ONCE + 2):
        bench.happened(event(id))
    assert [id for id, _ in bench.at_work] == list(range(AT_ONCE))
    assert (bench.queue.running, bench.queue.waiting) == (AT_ONCE, 2)
    bench.ended(which=3)
    assert bench.at_work[-1] == (AT_ONCE, "hook")
    bench.ended(which=0)
    assert bench.at_work[-1] == (AT_ONCE + 1, "hook")
    assert (bench.queue.running, bench.queue.waiting) == (AT_ONCE, 0)


def test_at_the_bound_the_newest_event_is_dropped_and_counted() -> None:
    bench = Bench(hook())
    for id in range(AT_ONCE + MOST_WAITING + 3):
        bench.happened(event(id))
    assert (bench.queue.waiting, bench.queue.dropped) == (MOST_WAITING, 3)
    handled = []
    while bench.at_work:
        handled.append(bench.at_work[0][0])
        bench.ended()
    assert handled == list(range(AT_ONCE + MOST_WAITING))
    assert bench.queue.running == 0


def test_dropped_events_are_warned_about_at_most_once_a_minute() -> None:
    bench = Bench(hook())
    for id in range(AT_ONCE + MOST_WAITING):
        bench.happened(event(id))
    assert bench.said == []
    for _ in range(100):
        bench.happened(event())
        bench.now += SAID_EVERY / 100
    (first,) = bench.said
    assert (first.level, first.fields["dropped"]) == (logging.WARNING, 1)
    bench.now += 1.0
    bench.happened(event())
    assert [said.fields["dropped"] for said in bench.said] == [1, 101]
    assert bench.said[1].fields["held_back"] == 99


def test_when_the_loop_ends_what_waits_is_dropped_and_what_comes_later_is_handled() -> None:
    bench = Bench(hook("a"), hook("b"))
    for id in range(AT_ONCE + 5):
        bench.happened(event(id))
    bench.running.clear()
    for _ in range(AT_ONCE):
        bench.queue.cut_off()
    assert (bench.queue.running, bench.queue.waiting, bench.queue.dropped) == (0, 0, 5)
    bench.happened(event(99))
    assert bench.at_work == [(99, "a")]


# what a hook does


def test_each_hook_has_an_event_of_its_own() -> None:
    heard: list[AnyEvent] = []

    def change(event: AnyEvent) -> None:
        heard.append(event)
        event.args["to"] = "somebody else"

    bench = Bench(hook("a", None, change), hook("b", None, change), hook("c", None, heard.append))
    bench.happened(event(1))
    for _ in range(3):
        bench.call()
    assert [got.args["to"] for got in heard] == ["somebody else", "somebody else", "a"]
    assert len({id(got) for got in heard}) == 3


@pytest.mark.parametrize("error", [ValueError("no smtp"), SystemExit(3), GeneratorExit()], ids=repr)
def test_a_raising_hook_is_logged_with_its_name_and_the_next_one_is_called(error: BaseException) -> None:
    bench = Bench(hook("app.mail"), hook("app.metrics"))
    bench.happened(event(7))
    bench.ended(error)
    assert bench.at_work == [(7, "app.metrics")]
    (said,) = bench.said
    assert said.level == logging.ERROR
    assert said.fields["hook"] == "app.mail"
    assert (said.fields["job"], said.fields["kind"], said.fields["event"]) == (7, "k", "Completed")
    assert said.fields["error"].startswith(type(error).__name__)
    assert "traceback" in said.fields


def test_a_hook_that_always_fails_does_not_fill_the_log() -> None:
    bench = Bench(hook())
    for id in range(1000):
        bench.happened(event(id))
        bench.ended(ValueError())
    assert len(bench.said) == 20


@pytest.mark.parametrize(
    ("args_type", "args", "given"),
    [
        (None, '{"to":"a"}', {"to": "a"}),
        (SendEmail, '{"to":"a"}', SendEmail("a")),
        (Receipt, '{"number":3}', Receipt(3)),
    ],
)
def test_a_hook_gets_the_args_as_the_class_it_is_registered_for(args_type: Any, args: str, given: object) -> None:
    heard: list[AnyEvent] = []
    bench = Bench(hook(args_type=args_type, function=heard.append))
    bench.happened(event(1, args=args))
    bench.call()
    (got,) = heard
    assert got.args == given
    assert isinstance(got, events.Completed)
    assert (got.job.id, got.duration) == (1, timedelta(seconds=1.5))


def test_args_that_do_not_decode_skip_the_typed_hook_alone_and_are_logged() -> None:
    heard: list[AnyEvent] = []
    bench = Bench(hook("typed", SendEmail, heard.append), hook("plain", None, heard.append))
    bench.happened(event(1, args='{"too":"a"}'))
    bench.call()
    bench.call()
    assert [got.args for got in heard] == [{"too": "a"}]
    (said,) = bench.said
    assert (said.level, said.fields["hook"]) == (logging.WARNING, "typed")
    assert "to: Field required" in said.fields["error"]


@pytest.mark.parametrize("args", ["[1]", '"text"', "5", "null"])
def test_a_hook_of_a_kind_hears_of_jobs_whose_args_are_no_object(args: str) -> None:
    registry = Registry()
    heard: list[AnyEvent] = []
    registry.on_event("k")(heard.append)
    queue = HookQueue(registry.hooks)
    (run,) = queue.happened([event(1, args=args)], 0.0, None)
    run.call()
    assert [got.args for got in heard] == [got.job.args for got in heard]


class Reading:
    """A registry with a task of SendEmail, whose args it counts how often they are read."""

    def __init__(self) -> None:
        self.registry = Registry()
        self.registry.task(SendEmail)(id)
        self.read = 0

    def hooked(self, args_type: type[Any], function: Any) -> None:
        def decode(text: str) -> Any:
            self.read += 1
            return decoder(args_type)(text)

        self.registry.add_hook(Hook("send_email", args_type, function, decode, is_async=False, name="hook"))

    def told(self, args: str = '{"to":"a"}') -> None:
        """A handler was called with these args, and its hooks are told so."""
        attempt = Attempt(1, 2, 3, 4, 7, "q", 2, "send_email", args, 1, 3, NOON, NOON, None)
        queue = HookQueue(self.registry.hooks)
        (run,) = queue.happened((started(attempt, NOON, None),), 0.0, None)
        following: RunHook | None = run
        while following is not None:
            following.call()
            following = queue.ended(following)


def test_args_that_a_handler_has_had_are_read_for_a_hook_when_it_asks_for_them() -> None:
    reading, seen = Reading(), list[Any]()
    reading.hooked(SendEmail, lambda event: seen.append(event.job.id))
    reading.told()
    assert (seen, reading.read) == ([7], 0)
    reading.hooked(SendEmail, lambda event: seen.append((event.args, event.args is event.args)))
    reading.told()
    assert (seen, reading.read) == ([7, 7, (SendEmail("a"), True)], 1)


def test_args_that_each_of_several_hooks_asks_for_are_its_own() -> None:
    reading, seen = Reading(), list[str]()

    def changes(event: AnyEvent) -> None:
        seen.append(event.args.to)
        event.args.to = "changed"

    for _ in range(3):
        reading.hooked(SendEmail, changes)
    reading.told()
    assert (seen, reading.read) == (["a"] * 3, 3)


def test_args_that_may_not_fit_the_class_of_a_hook_are_read_before_it_is_called() -> None:
    reading = Reading()
    reading.hooked(Receipt, id)
    with pytest.raises(ArgsNotRead):
        reading.told()
    assert reading.read == 1


def test_an_event_that_is_pickled_or_copied_has_everything() -> None:
    reading, kept = Reading(), list[AnyEvent]()
    reading.hooked(SendEmail, kept.append)
    pickled: Callable[[AnyEvent], AnyEvent] = lambda event: pickle.loads(pickle.dumps(event))  # noqa: E731
    for copied in (copy.copy, copy.deepcopy, pickled):
        reading.told()
        again = copied(kept[-1])
        assert (again.args, again.job.id, again) == (SendEmail("a"), 7, kept[-1])


def test_each_hook_runs_in_the_context_that_came_with_its_event() -> None:
    bench = Bench(hook("a"), hook("b"))
    bench.happened(event(1), context="one")
    bench.happened(event(2), context="two")
    bench.ended()
    assert [(run.hook.name, run.context) for run in bench.running] == [("a", "two"), ("b", "one")]


# any order of things


@pytest.mark.parametrize("seed", range(200))
def test_whatever_hooks_do_every_event_is_handled_in_full_or_counted_as_dropped(seed: int) -> None:
    """In virtual time: bursts of events, hooks that take their time or raise, and a loop that ends."""
    random = Random(seed)
    names = [f"hook {number}" for number in range(random.choice((1, 2, 3)))]
    queue = HookQueue({"k": [hook(name) for name in names]})
    pace = random.choice((0.0001, 0.01, 0.1))
    numbers = count()
    burst = random.choice((1, 2, 10))
    coming = [(random.random() * 10, next(numbers), None) for _ in range(random.choice((50, 500, 3000)))]
    due: list[tuple[float, int, RunHook | None]] = list(coming)
    heapq.heapify(due)
    called: dict[int, list[str]] = {}
    at_work: set[int] = set()
    now, ids = 0.0, count()
    while due:
        now, _, run = heapq.heappop(due)
        if run is None:
            begun = queue.happened([event(next(ids)) for _ in range(burst)], now, None)
        else:
            at_work.discard(run.event.job.id)
            if random.random() < 0.2:
                queue.raised(run, ValueError(), now)
            following = queue.ended(run)
            begun = [] if following is None else [following]
        for run in begun:
            id = run.event.job.id
            assert id not in at_work
            at_work.add(id)
            called.setdefault(id, []).append(run.hook.name)
            heapq.heappush(due, (now + random.expovariate(1 / pace), next(numbers), run))
        assert queue.running == len(at_work) <= AT_ONCE
        assert queue.waiting <= MOST_WAITING
        assert not queue.waiting or queue.running == AT_ONCE
    assert all(order == names for order in called.values())
    assert list(called) == sorted(called)
    assert len(called) + queue.dropped == burst * len(coming)


# registration


async def coroutine(_: AnyEvent) -> None: ...


def test_hooks_of_a_kind_are_kept_in_the_order_they_were_registered() -> None:
    registry = Registry()
    registry.on_event(SendEmail)(id)
    registry.on_event("send_email")(len)
    registry.on_event(SendEmail)(coroutine)
    hooks = registry.hooks["send_email"]
    assert [hook.function for hook in hooks] == [id, len, coroutine]
    assert [hook.is_async for hook in hooks] == [False, False, True]
    assert [hook.args_type for hook in hooks] == [SendEmail, None, SendEmail]


def test_the_decorator_returns_the_hook_as_it_is() -> None:
    assert Registry().on_event("k")(coroutine) is coroutine


def test_one_function_may_be_a_hook_of_several_kinds_and_twice_of_one() -> None:
    registry = Registry()
    for kind in ("a", "b", "a"):
        registry.on_event(kind)(id)
    assert {kind: len(hooks) for kind, hooks in registry.hooks.items()} == {"a": 2, "b": 1}


@pytest.mark.parametrize("task_first", [True, False])
def test_a_hook_for_a_class_is_for_the_kinds_its_tasks_are_registered_for(task_first: bool) -> None:
    registry = Registry()
    if task_first:
        registry.task(SendEmail, kind="mail")(id)
    registry.on_event(SendEmail)(len)
    if not task_first:
        assert set(registry.hooks) == {"send_email"}
        registry.task(SendEmail, kind="mail")(id)
    assert set(registry.hooks) == {"mail"}
    registry.task(SendEmail, kind="news")(id)
    assert set(registry.hooks) == {"mail", "news"}


def test_a_hook_for_a_class_and_a_kind_is_for_that_kind_alone() -> None:
    registry = Registry()
    registry.task(SendEmail, kind="mail")(id)
    registry.on_event(SendEmail, kind="news")(len)
    assert set(registry.hooks) == {"news"}


def test_a_registry_that_includes_another_has_its_hooks_also_later_ones_and_each_once() -> None:
    app, mails, common = Registry(), Registry(), Registry()
    common.on_event("k")(id)
    mails.include(common)
    app.include(mails)
    app.include(common)
    common.on_event("k")(len)
    mails.on_event(SendEmail)(coroutine)
    assert [hook.function for hook in app.hooks["k"]] == [id, len]
    assert [hook.function for hook in app.hooks["send_email"]] == [coroutine]
    assert set(common.hooks) == {"k"}


def test_a_hook_is_refused_where_nothing_awaits_also_when_it_is_included() -> None:
    blocking, tasks = Registry(takes_coroutines=False), Registry()
    with pytest.raises(ValidationError, match="coroutine function") as caught:
        blocking.on_event("k")(coroutine)
    assert caught.value.field == "hook"
    tasks.on_event("k")(coroutine)
    with pytest.raises(ValidationError, match="coroutine function"):
        blocking.include(tasks)
    assert not blocking.hooks


def _generator(_: AnyEvent) -> Any:
    yield


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda: None, "cannot be called with the event alone"),
        (lambda a, b: None, "cannot be called with the event alone"),
        (5, "cannot be called"),
        (_generator, "generator function"),
    ],
)
def test_what_cannot_be_called_with_an_event_is_refused_when_it_is_registered(function: Any, reason: str) -> None:
    registry = Registry()
    with pytest.raises(ValidationError, match=reason) as caught:
        registry.on_event("k")(function)
    assert caught.value.field == "hook"
    assert not registry.hooks


@pytest.mark.parametrize(
    ("jobs", "options", "field"),
    [
        (5, {}, "jobs"),
        (SendEmail("a"), {}, "jobs"),
        (None, {}, "jobs"),
        (dict, {}, "jobs"),
        (dict, {"kind": "k"}, "jobs"),
        ("", {}, "kind"),
        ("x" * 201, {}, "kind"),
        ("a\0b", {}, "kind"),
        ("k", {"kind": "k"}, "kind"),
        (SendEmail, {"kind": ""}, "kind"),
        (SendEmail, {"kind": 5}, "kind"),
    ],
    ids=str,
)
def test_what_is_neither_a_class_nor_a_kind_is_refused(jobs: Any, options: dict[str, Any], field: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Registry().on_event(jobs, **options)
    assert caught.value.field == field
