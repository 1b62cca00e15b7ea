"""A queue as one worker serves it: its slots, what is claimed ahead, and when it is asked again.

Everything that decides how much a queue is asked for, and when, is in this file.

After an answer      | the next claim of the queue
---------------------|------------------------------------------------------------------------------
everything asked for | as soon as something is wanted: there is a backlog, and jobs may be claimed ahead
less, or nothing     | a poll: after 5 ms, and twice as long each time, up to `poll_interval`
the same, but woken  | at once: a notification came while the claim was under way
the same, while awake| after 2 to 5 ms (notifications come so fast that polling is cheaper for everybody)
another's turn       | after 5 to 20 ms, for everything that became free meanwhile
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Final

from awa_proto.job import Attempt
from awa_proto.store import Demand, QueueSettings
from awa_proto.worker.bucket import TokenBucket
from awa_proto.worker.config import QueueConfig

MOST: Final = 1000
"""Most jobs claimed ahead, and most that one claim asks for a queue."""
AHEAD: Final = 0.1
"""Seconds of work per slot that are claimed ahead while there is a backlog."""
FIRST_POLL: Final = 0.005
NOISE: Final = (25, 0.05)
"""So many notifications within so many seconds (500 a second) are noise: the queue is polled instead."""
SILENCE: Final = 0.03
"""Seconds of empty polls after which an awake queue goes back to sleep."""
_GROWTH = 4
"""So many times the newest claim, and no more, is claimed ahead: a first quick handler says little about the next ones."""
_INSIST_AFTER = 10
"""So many times in a row another was at it: then it is asked whoever seems to be, for only the turn decides."""
_EARLY = 0.6
_SMOOTHING = 0.1


class ServedQueue:
    """One queue of a worker. Plain state; the components of the machine read and move it.

    slots, running, buffer: handlers allowed and at work, and jobs claimed but not started, best first.
    asleep: it wants to be announced, so that producers send notifications. awake: it polls by itself, fast.
    paused, stripes: what the database last said.
    empty: the newest claim found nothing, and nothing spoke against it since.
    """

    __slots__ = (
        "_again_at", "_ask_at", "_asked", "_backlog", "_bucket", "_delay", "_doubted", "_dry", "_found_at", "_got", "_heard",
        "_heard_since", "_in_vain", "_next_stripe", "_pace", "_poll_interval", "_random", "_stripes_asked", "_wait", "_woken",
        "asked_at", "asleep", "awake", "buffer", "config", "empty", "moved_at", "name", "paused", "running", "slots", "stripes",
    )  # fmt: skip

    def __init__(self, name: str, config: QueueConfig, poll_interval: float, random: Callable[[], float]) -> None:
        self.name = name
        self.config = config
        self.slots = config.max_workers
        self.running = 0
        self.buffer: deque[Attempt] = deque()
        self.moved_at = 0.0
        self.paused = False
        self.stripes = 1
        self.asleep = False
        self.awake = False
        self.empty = False
        self._random = random
        self._poll_interval = poll_interval
        rate, burst = config.rate
        self._bucket = TokenBucket(rate, burst) if math.isfinite(rate) else None
        self._pace: float | None = None
        self._backlog = False
        self._asked = 0
        self._stripes_asked = 0
        self._next_stripe = 0
        self._dry = 0
        self._ask_at = -math.inf
        self._again_at = -math.inf
        self._delay = FIRST_POLL
        self._wait = 0.0
        self._found_at = -math.inf
        self._got = 0
        self._woken = False
        self._doubted = False
        self._in_vain = 0
        self.asked_at = -math.inf
        self._heard = 0
        self._heard_since = -math.inf

    # what the database says of it

    def settle(self, settings: QueueSettings, now: float) -> None:
        """Take over what the database says about the queue."""
        if settings.stripes != self.stripes:
            self.stripes = max(1, settings.stripes)
            self._next_stripe = int(self._random() * self.stripes)
            self._dry = 0
        if self.paused and not settings.paused:
            self.wake(now)
        self.paused = settings.paused

    # how much, and when

    def wanted(self) -> int:
        """How many jobs it could take: free slots, and jobs ahead when less than half of those are left."""
        ahead = self._ahead()
        buffered = len(self.buffer)
        free = self.slots - self.running
        if free <= 0 and 2 * buffered > ahead:
            return 0
        return min(free + ahead - buffered, MOST)

    def when(self, now: float) -> float | None:
        """When it is to be asked next; None when it wants nothing."""
        wanted = self.wanted()
        if self.paused or wanted <= 0:
            return None
        at = max(self._ask_at, self._again_at)
        if self._bucket is not None:
            return max(at, self._bucket.ready_at(now, wanted))
        return at

    def is_due(self, now: float) -> bool:
        """Whether it is asked by a claim made now: its time has come, or nearly half of the wait for a poll is over.

        So the polls of several idle queues fall together and stay together.
        """
        wanted = self.wanted()
        if self.paused or wanted <= 0 or self._again_at > now:
            return False
        if self._bucket is not None and self._bucket.ready_at(now, wanted) > now:
            return False
        return self._ask_at - now <= _EARLY * self._wait

    def ask(self, now: float) -> list[Demand]:
        """What to ask for now: of a backlog one stripe after the other, else of as many stripes as jobs are wanted."""
        wanted = self.wanted()
        if self._bucket is not None:
            wanted = min(wanted, self._bucket.available(now))
            self._bucket.take(wanted)
        self._asked = wanted
        self._woken = self._doubted = False
        count = self._stripes_asked = 1 if self._backlog else min(wanted, self.stripes)
        share, more = divmod(wanted, count)
        first = self._next_stripe
        self._next_stripe = (first + count) % self.stripes
        self.asked_at = now
        aging, deadline, insist = self.config.aging, self.config.deadline, self._in_vain >= _INSIST_AFTER
        return [
            Demand(self.name, share + (i < more), (first + i) % self.stripes, aging, deadline, insist)
            for i in range(count)
        ]

    def answered(self, got: int, *, again: bool, now: float) -> None:
        """A claim that asked for it brought `got` jobs."""
        asked, self._asked = self._asked, 0
        if self._bucket is not None and got < asked:
            self._bucket.give_back(asked - got)
        if got:
            self._got = got
            self._found_at = now
            self._delay = FIRST_POLL
            self._dry = 0
            self.empty = False
        self._in_vain = self._in_vain + 1 if again and not got else 0
        if again:
            self.empty = False
            self._again_at = now + 0.005 + 0.015 * self._random()
            self._ask_at = now
        elif got >= asked:
            self._backlog = True
            self._ask_at = now
        else:
            self._backlog = False
            self._found_less(got, now)

    def claim_failed(self, *, nothing_came: bool) -> None:
        """A claim that asked for it failed. nothing_came: certainly none of its jobs is ours."""
        if self._bucket is not None and nothing_came:
            self._bucket.give_back(self._asked)
        self._asked = 0

    def wait_until(self, at: float) -> None:
        """Something holds it up: ask no sooner."""
        self._again_at = at

    def _found_less(self, got: int, now: float) -> None:
        if not got and not self._doubted:
            self._dry += self._stripes_asked
            self.empty = self._dry >= self.stripes
        if self._woken or (self.stripes > 1 and (got or self._dry < self.stripes)):
            self._ask_at = now
            return
        if self.awake and (got or now - self._found_at < SILENCE):
            self._ask_at = now + 0.002 + 0.003 * self._random()
            return
        if not got:
            self.awake = False
            self.asleep = True
        self._wait = self._delay * (1 + 0.1 * self._random())
        self._ask_at = now + self._wait
        self._delay = min(2 * self._delay, self._poll_interval)

    # wake-ups

    def wake(self, now: float) -> None:
        """It may have work. Ask at once, unless it is asked every few milliseconds anyway."""
        self._delay = FIRST_POLL
        if self.awake:
            self._doubt()
        else:
            self.look(now)

    def look(self, now: float) -> None:
        """Ask once more, whatever the last answer was."""
        self._doubt()
        self._ask_at = min(self._ask_at, now)
        if self._asked:
            self._woken = True

    def _doubt(self) -> None:
        """It may not be empty any more; a claim under way proves nothing, since it may have looked before."""
        self.empty = False
        self._dry = 0
        if self._asked:
            self._doubted = True

    def hear(self, now: float) -> None:
        """A notification came for it. Too many of them, and it stays awake, so that producers stop sending."""
        most, window = NOISE
        if now - self._heard_since > window:
            self._heard_since = now
            self._heard = 0
        self._heard += 1
        if self._heard >= most and not self.awake:
            self.awake = True
            self.asleep = False
            self._found_at = now
        self.wake(now)

    # how long its handlers take

    def measured(self, took: float) -> None:
        """A handler took so many seconds."""
        pace = self._pace
        self._pace = took if pace is None else pace + _SMOOTHING * (took - pace)

    def slowed_down(self, took: float) -> None:
        """Handlers take at least so long: do not claim ahead as if they were quick."""
        self._backlog = False
        self._pace = max(self._pace or 0.0, took)

    def _ahead(self) -> int:
        if not self._backlog or self._pace is None or self._bucket is not None:
            return 0
        ahead = int(AHEAD * self.slots / max(self._pace, 1e-6))
        return min(ahead, _GROWTH * max(self._got, self.slots), MOST)
