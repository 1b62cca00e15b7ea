"""The books of a simulated world, kept from what really happened, not from what a machine believes.

Every broken promise is a `Broken` with the time and the seed, so that it can be played again.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime

from awa_proto.events import AnyEvent, Started, WaitingForCallback
from awa_proto.job import Attempt, JobRow, JobState
from awa_proto.outcome import Outcome
from awa_proto.store import Ended, Verdict
from awa_proto.testing.claims import Broken, Claim, check
from awa_proto.testing.tokens import Tokens

_EVENTS: dict[Outcome | None, str] = {
    Outcome.COMPLETED: "Completed",
    Outcome.RETRIED: "Retried",
    Outcome.EXHAUSTED: "Exhausted",
    Outcome.CANCELLED: "Cancelled",
}
_BEFORE_THE_END = frozenset({"Started", "WaitingForCallback"})


FOLLOWED = frozenset({"simulated"})
"""The kinds whose jobs have follow-ups."""


class Accounts:
    """Claims, starts and endings of every attempt.

    tokens: the callbacks. time: of the database. state_of: where a job is now.
    """

    def __init__(self, time: Callable[[], datetime], state_of: Callable[[int], JobState]) -> None:
        self.claims: dict[tuple[int, int], Claim] = {}
        self.cancelled_jobs: set[int] = set()
        self.runs: Counter[int] = Counter()
        self.tokens = Tokens(self.claims, time, state_of)

    def claimed(self, worker: int, attempts: Iterable[Attempt]) -> None:
        """The database has given attempts to a worker."""
        for attempt in attempts:
            fence = attempt.id, attempt.run_lease
            if fence in self.claims:
                raise Broken(f"{fence} was claimed twice")
            self.claims[fence] = Claim(attempt, worker)

    def told(self, attempts: Iterable[Attempt]) -> None:
        """The worker knows of them."""
        for attempt in attempts:
            self.claims[attempt.id, attempt.run_lease].is_known = True

    def started(self, worker: int, attempt: Attempt) -> None:
        """A handler runs."""
        claim = self.claims[attempt.id, attempt.run_lease]
        is_over = (
            claim.accepted is not None and claim.rescue is None
        )  # of a rescue a worker that stood still knows nothing
        if claim.worker != worker or claim.is_started or is_over:
            raise Broken(f"{claim} is started by {worker}: elsewhere, twice, or after its end")
        claim.is_started = True
        self.runs[attempt.id] += 1
        self.tokens.started(attempt)

    def heard(self, worker: int, events: Iterable[AnyEvent]) -> None:
        """Hooks of a worker are told of these."""
        for event in events:
            self._told(worker, event)

    def _told(self, worker: int, event: AnyEvent) -> None:
        """Hooks of a worker are told: that an attempt starts, or how it ended, once each and as it is written."""
        job, name = event.job, type(event).__name__
        claim = self.claims[job.id, job.run_lease]
        told = claim.told
        match event:
            case Started():
                holds = claim.worker == worker and "Started" not in told and not claim.is_started
                holds = holds and job.state is JobState.RUNNING
            case WaitingForCallback():
                end = None if claim.parked is None else claim.parked[1]
                holds = claim.worker == worker and name not in told and end is not None
                holds = holds and (job.state, job.attempt) == (end.to, end.attempt)  # type: ignore[union-attr]
            case _ if claim.rescue is not None:
                expected = ["Rescued", "Exhausted"] if claim.rescue.to is JobState.FAILED else ["Rescued"]
                before = [each for each in told if each not in _BEFORE_THE_END]
                holds = expected[: len(before) + 1] == [*before, name] and job.state is claim.rescue.to
            case _:
                end = None if claim.accepted is None else claim.accepted[1]
                holds = claim.worker == worker and told in ([], ["Started"]) and end is not None and not claim.is_called
                holds = holds and _EVENTS.get(end.outcome) == name  # type: ignore[union-attr]
                holds = holds and (job.state, job.attempt, job.finalized_at) == (end.to, end.attempt, end.at)  # type: ignore[union-attr]
        if not holds:
            raise Broken(f"worker {worker} tells {name} with {job.state}, attempt {job.attempt}, of {claim}")
        told.append(name)

    def untold(self, worker: int) -> list[Claim]:
        """Attempts of a worker of which something is written that should have been told: that they wait, or how they ended."""
        return [
            claim for claim in self.claims.values()
            if claim.worker == worker and (
                "WaitingForCallback" not in claim.told
                if claim.parked is not None
                else claim.accepted is not None and claim.accepted[1].outcome is not None and claim.rescue is None
                and claim.told[-1:] in ([], ["Started"])
            )
        ]  # fmt: skip

    def written(self, ended: Sequence[Ended], flush: int, verdicts: Sequence[Verdict]) -> None:
        """The database has answered a flush, whether or not the answer arrives."""
        for one, verdict in zip(ended, verdicts, strict=True):
            fence = one.attempt.id, one.attempt.run_lease
            claim = self.claims[fence]
            if verdict is Verdict.ACCEPTED:
                end = flush, one.transition
                if one.transition.to is JobState.WAITING_EXTERNAL:
                    self.tokens.parked(claim, end)
                    continue
                if claim.accepted == end:  # the same flush, sent again
                    continue
                if one.called is not None:
                    self.tokens.expired(one.attempt)
                if not claim.is_open or (claim.parked is not None and one.called is None):
                    raise Broken(f"{fence} was ended twice: {claim} and {end}")
                claim.accepted = end
            elif verdict is Verdict.UNREGISTERED:
                self.tokens.unregistered(claim, one.transition.callback)
            elif verdict is Verdict.STALE and one.called is None:  # else its callback came, or was given more time
                refused = one.transition.entry is not None and "ResultRefused" in one.transition.entry["error"]
                is_rescue = (claim.rescue or one.transition.rescue) is not None
                otherwise = (is_rescue and (claim.accepted or claim.parked) is not None) or claim.is_called
                if not (claim.is_cancelled or refused or otherwise):
                    raise Broken(f"{fence} is stale, though nobody else ended it")

    def cancelled(self, job: JobRow) -> None:
        """A person cancelled a job that was like this."""
        self.cancelled_jobs.add(job.id)
        if job.state in {JobState.RUNNING, JobState.WAITING_EXTERNAL}:
            self.claims[job.id, job.run_lease].is_cancelled = True

    def excuse(self, worker: int, reason: str) -> None:
        """A worker died, or gave up: what it had in its hands nobody may ever end."""
        for claim in self.claims.values():
            if claim.worker == worker and claim.accepted is None and claim.excuse is None:
                claim.excuse = reason

    def unfinished(self, worker: int) -> list[Claim]:
        """Attempts that the worker knows of and nobody has ended, nor let wait."""
        return [
            claim for claim in self.claims.values()
            if claim.worker == worker and claim.is_known and claim.is_open and claim.parked is None
        ]  # fmt: skip

    def close(self, jobs: Sequence[JobRow], expected: Mapping[int, str | None]) -> None:
        """The end: every job is accounted for, exactly.

        expected: the state each job must have reached; None for any that is final.
        """
        lost = {
            claim.attempt.id for claim in self.claims.values()
            if claim.is_open and (not claim.is_known or claim.excuse is not None)
        }  # fmt: skip
        open_claims = {claim.attempt.id for claim in self.claims.values() if claim.is_open}
        running = {job.id for job in jobs if job.state is JobState.RUNNING}
        check(running == open_claims, f"running and open differ: {running ^ open_claims}")
        check(
            running == lost, f"jobs run for ever without an excuse: {sorted(running - lost)}; {sorted(lost - running)}"
        )
        claims: defaultdict[int, list[Claim]] = defaultdict(list)
        for claim in self.claims.values():
            claims[claim.attempt.id].append(claim)
        for job in jobs:
            if job.state is not JobState.RUNNING:
                check(job.state.is_terminal, f"job {job.id} is left {job.state}")
                self._check_end(job, claims[job.id], expected[job.id])

    def close_follow_ups(self, jobs: Sequence[JobRow], followed: Mapping[tuple[int, str], int]) -> None:
        """Each job that completed has the follow-ups that are registered, and if its worker did that those that were staged."""
        called = {claim.attempt.id for claim in self.claims.values() if claim.is_called and _completed(claim)}
        expected = {
            (job.id, how): 1
            for job in jobs
            if job.state is JobState.COMPLETED and job.kind in FOLLOWED
            for how, each in (("registered", 3), ("staged", 5))
            if job.id % each == 0 and not (how == "staged" and job.id in called)
        }
        check(expected == dict(followed), f"follow-ups differ: {expected.items() ^ dict(followed).items()}")

    def _check_end(self, job: JobRow, claims: Sequence[Claim], expected: str | None) -> None:
        if job.id in self.cancelled_jobs:
            check(job.state is JobState.CANCELLED, f"job {job.id} was cancelled and is {job.state}")
            return
        if any(claim.rescue is not None or claim.is_called for claim in claims):
            expected = None  # a worker died with it, perhaps on its last attempt; or somebody outside decided
        ends = [claim.accepted[1] for claim in claims if claim.accepted is not None]
        if sum(end.to is job.state for end in ends) != 1:
            raise Broken(f"job {job.id} is {job.state}, reached {ends}")
        if expected is not None and job.state != expected:
            raise Broken(f"job {job.id} is {job.state} and not {expected}: {job.errors}")
        before = 0
        for claim in claims:
            check(claim.attempt.attempt == before + 1, f"of {claim} the count is not the one after {before}")
            before = claim.attempt.attempt if claim.accepted is None else claim.accepted[1].attempt
        check(job.attempt == before, f"job {job.id} counts {job.attempt} attempts, and {before} were counted")


def _completed(claim: Claim) -> bool:
    return claim.accepted is not None and claim.accepted[1].to is JobState.COMPLETED
