"""The books of the callbacks of a simulated world: whose each is, until when it is waited for, and what it was used for.

They are kept from what the database was told, in the order in which it was: of a registration whose answer was lost nobody
outside hears, but it takes the place of the one before it.

what is done with a callback   | it must be                        | else
-------------------------------|-----------------------------------|---------------------------------------------------
complete, fail, resume         | the newest of its attempt, unused,| CallbackNotFound, and nothing is changed
                               | and its attempt not ended         |
retry                          | the same, and waited for          | the same
more time                      | the same as for completing        | the same
rescue                         | the same, and its time must be up | stale
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Literal, TypeAlias

from awa_proto import extra as extras
from awa_proto.events import AnyEvent
from awa_proto.job import Attempt, JobRow, JobState
from awa_proto.outcome import Transition
from awa_proto.store import Registered
from awa_proto.testing.claims import Claim, check

Use: TypeAlias = Literal["complete", "fail", "retry", "resume", "heartbeat"]
"""What the outside world does with a callback."""
USES: Final[tuple[Use, ...]] = ("complete", "fail", "retry", "resume", "heartbeat")
_ENDS: Final = {"complete": JobState.COMPLETED, "fail": JobState.FAILED, "retry": JobState.AVAILABLE}
_TELLS: Final = {"complete": ["Completed"], "fail": ["Exhausted"], "retry": ["Retried"]}
_OUTSIDE: Final = -2
"""The flush of an end that no worker wrote."""


@dataclass(slots=True)
class Token:
    """A callback that was registered.

    until: when its job is rescued, by the clock of the database. used: for what, and payload: with what it came then.
    is_replaced: the attempt has registered another one.
    """

    id: str
    attempt: Attempt
    until: datetime
    used: Use | None = None
    payload: Any = None
    is_replaced: bool = False


class Tokens:
    """Every callback there ever was.

    by_id: all, oldest first. newest: by job. time: of the database. state_of: where a job is now.
    """

    def __init__(
        self,
        claims: Mapping[tuple[int, int], Claim],
        time: Callable[[], datetime],
        state_of: Callable[[int], JobState],
    ) -> None:
        self._claims = claims
        self._time = time
        self._state_of = state_of
        self._came: dict[int, Any] = {}
        self.by_id: dict[str, Token] = {}
        self.newest: dict[int, Token] = {}

    def registered(self, attempt: Attempt, registered: Registered) -> None:
        """The database has a new one."""
        check(self._claim(attempt).is_open, f"a callback was registered for {attempt}, which had ended")
        check(self._claim(attempt).parked is None, f"a callback was registered for {attempt}, which was parked")
        before = self.newest.get(attempt.id)
        if before is not None:
            if before.id == registered.id:  # the same one, sent again
                before.until = registered.timeout_at
                return
            before.is_replaced = True
        token = Token(registered.id, attempt, registered.timeout_at)
        self.by_id[token.id] = self.newest[attempt.id] = token

    def is_live(self, token: Token) -> bool:
        """Whether its job may still wait for it."""
        return token.used is None and not token.is_replaced and self._claim(token.attempt).is_open

    # what the outside world was answered

    def accepted(self, id: str, use: Use, job: JobRow, told: Sequence[AnyEvent], payload: Any, more: float) -> None:
        """It was used. job: the answer. told: what hooks were told. more: seconds of time it was given."""
        token = self.by_id[id]
        attempt, claim = token.attempt, self._claim(token.attempt)
        check(self.is_live(token), f"{use} of {token} was accepted, of {claim}")
        names = [type(event).__name__ for event in told]
        check(names == _TELLS.get(use, []), f"hooks are told {names} of a {use}")
        if use == "heartbeat":
            token.until = self._time() + timedelta(seconds=more)
            return
        token.used, token.payload = use, payload
        if use == "retry":
            self._came.pop(attempt.id, None)
        if use != "resume":
            self._ended(claim, _ENDS[use], 0 if use == "retry" else attempt.attempt)
        elif claim.parked is not None:
            self._ended(claim, JobState.AVAILABLE, attempt.attempt - 1)
            self._came[attempt.id] = payload
        if not claim.is_open:
            end = claim.accepted
            assert end is not None
            seen = job.state, job.attempt, self._state_of(attempt.id)
            check(seen == (end[1].to, end[1].attempt, end[1].to), f"after {use} the job is {seen}, and not {end[1]}")

    def refused(self, id: str, use: Use) -> None:
        """It was not found."""
        token = self.by_id[id]
        has_begun = use != "retry" or self._claim(token.attempt).parked is not None
        check(not (self.is_live(token) and has_begun), f"{use} of {token} was refused, of {self._claim(token.attempt)}")

    def retried(self, job: JobRow) -> None:
        """A person let a job run again that waited."""
        token = self.newest[job.id]
        check(self.is_live(token), f"a person retries what waits for {token}")
        token.used = "retry"
        self._came.pop(job.id, None)
        self._ended(self._claim(token.attempt), JobState.AVAILABLE, 0)

    def expired(self, attempt: Attempt) -> None:
        """Its job was rescued, since its time is up."""
        token = self.newest[attempt.id]
        check(self.is_live(token), f"{token} is rescued")
        check(token.until <= self._time(), f"{token} is rescued at {self._time()}")

    # what becomes of its attempt

    def unregistered(self, claim: Claim, id: str | None) -> None:
        """An attempt was not parked, since the callback it would have waited for was none, or not its newest."""
        token = self.newest.get(claim.attempt.id)
        is_its_own = token is not None and token.id == id and token.attempt.run_lease == claim.attempt.run_lease
        check(not is_its_own, f"{claim} was not let wait for {token}")

    def parked(self, claim: Claim, end: tuple[int, Transition]) -> None:
        """The database has accepted that an attempt waits; or runs again, since its callback had come."""
        if claim.parked == end:  # the same flush, sent again
            return
        token = self.newest.get(claim.attempt.id)
        check(claim.is_open and claim.parked is None, f"{claim} is parked by {end}")
        check(
            token is not None and token.id == end[1].callback and token.attempt.run_lease == claim.attempt.run_lease,
            f"{claim} is parked without its callback, {token}",
        )
        assert token is not None
        claim.parked = end
        if token.used == "resume":
            self._ended(claim, JobState.AVAILABLE, claim.attempt.attempt - 1)
            self._came[claim.attempt.id] = token.payload
        state, expected = self._state_of(claim.attempt.id), _parked_state(token)
        check(state is expected, f"a job that was parked is {state}, and not {expected}: {token}")

    def started(self, attempt: Attempt) -> None:
        """An attempt knows what its job was resumed with last, if it was."""
        if attempt.id in self._came or (attempt.extra is not None and "callback_result" in attempt.extra):
            came = extras.decode(attempt.extra).get("callback_result")
            check(came == {"value": self._came.get(attempt.id)}, f"{attempt.id} was resumed with {came}: {self._came}")

    def went_on(self, id: str, payload: Any) -> None:
        """A handler that waited was given a payload."""
        token = self.by_id[id]
        check(token.used == "resume" and token.payload == payload, f"a handler was given {payload} of {token}")

    def came_to_nothing(self, id: str) -> None:
        """A handler that waits for it was told that it never comes. Another one, sent before it, may have arrived after it."""
        token = self.by_id[id]
        comes = token.used in {None, "resume"} and not token.is_replaced and self._claim(token.attempt).is_open
        check(not comes, f"a handler was told that {token} never comes")

    def was_refused(self, attempt: Attempt) -> None:
        """A handler was told that its attempt has ended, and no callback is registered."""
        claim = self._claim(attempt)
        check(not claim.is_open, f"a handler was told that its attempt has ended, of {claim}")

    def _claim(self, attempt: Attempt) -> Claim:
        return self._claims[attempt.id, attempt.run_lease]

    def _ended(self, claim: Claim, to: JobState, attempt: int) -> None:
        claim.accepted = _OUTSIDE, Transition(to, attempt, self._time())
        claim.is_called = True


def _parked_state(token: Token) -> JobState:
    return JobState.AVAILABLE if token.used == "resume" else JobState.WAITING_EXTERNAL
