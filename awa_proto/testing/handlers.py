"""Handlers of simulated jobs that register callbacks, and wait for them or let their jobs wait.

Each is a generator over a real `JobBase`, written as a handler is: what it would await it yields. `Script` plays one in virtual
time, as a driver and a client do: a registration is an Op among faults, tried again as clients do; a wait goes through the
worker's inbox, and ends by what the machine says, by the handler's own patience, or by a cancellation.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, cast

from awa_proto.callbacks.token import CallbackToken
from awa_proto.errors import AttemptEnded, CallbackNotFound, DatabaseError, Retries
from awa_proto.handler import JobBase, WaitEnd
from awa_proto.job import Attempt
from awa_proto.outcome import Raised, Returned, WaitForCallback
from awa_proto.plan import Op, Plan
from awa_proto.store import Registered
from awa_proto.testing.faults import Fault, refusal, silence
from awa_proto.testing.simulator import Simulation, play
from awa_proto.worker.events import Lane, RunOp, StartJob, WaitAsked

if TYPE_CHECKING:
    from awa_proto.testing.process import Process


class Wait(NamedTuple):
    """A step: wait for a callback, at most so many seconds; TimeoutError after them."""

    token: CallbackToken
    patience: float | None = None


Steps: TypeAlias = "Generator[float | Op[CallbackToken] | Wait, Any, object]"
"""What a handler does: it works for so many seconds, registers a callback, or waits for one. Then it returns."""
SimulatedJob: TypeAlias = "JobBase[Mapping[str, Any], _Client]"


def _register(job: SimulatedJob) -> Op[CallbackToken]:
    return job.operations.register_callback(job.args["timeout"])


def _park(job: SimulatedJob, give: Callable[[CallbackToken], None]) -> Steps:
    token = yield _register(job)
    give(token)
    yield job.args["takes"]
    return WaitForCallback(token)


def _wait(job: SimulatedJob, give: Callable[[CallbackToken], None]) -> Steps:
    for _ in range(3):
        token = yield _register(job)
        give(token)
        yield job.args["takes"]
        yield Wait(token)
    return None


def _wait_and_park(job: SimulatedJob, give: Callable[[CallbackToken], None]) -> Steps:
    token = yield _register(job)
    give(token)
    yield Wait(token)
    return (yield from _park(job, give))


def _replace(job: SimulatedJob, give: Callable[[CallbackToken], None]) -> Steps:
    give((yield _register(job)))
    return (yield from _park(job, give))


def _leave_and_park(job: SimulatedJob, give: Callable[[CallbackToken], None]) -> Steps:
    token = yield _register(job)
    give(token)
    try:
        yield Wait(token, job.args["patience"])
    except TimeoutError:
        return WaitForCallback(token)
    return None


def _leave_and_work(job: SimulatedJob, give: Callable[[CallbackToken], None]) -> Steps:
    token = yield _register(job)
    give(token)
    with contextlib.suppress(TimeoutError):
        yield Wait(token, job.args["patience"])
    yield job.args["takes"]
    return None


def _leave_and_wait(job: SimulatedJob, give: Callable[[CallbackToken], None]) -> Steps:
    token = yield _register(job)
    give(token)
    for patience in (job.args["patience"], 0.0, None):
        try:
            yield Wait(token, patience)
        except TimeoutError:
            continue
        break
    return None


def _leave_and_register(job: SimulatedJob, give: Callable[[CallbackToken], None]) -> Steps:
    for patience in (job.args["patience"], job.args["patience"], None):
        token = yield _register(job)
        give(token)
        try:
            yield Wait(token, patience)
        except TimeoutError:
            continue
        break
    return None


def _park_for_nothing(job: SimulatedJob, give: Callable[[CallbackToken], None]) -> Steps:  # noqa: ARG001
    yield job.args["takes"]
    return WaitForCallback("00000000-0000-4000-8000-000000000000")


SCRIPTS: Final[Mapping[str, Callable[[SimulatedJob, Callable[[CallbackToken], None]], Steps]]] = {
    "park": _park,
    "wait": _wait,
    "wait, park": _wait_and_park,
    "replace": _replace,
    "leave, park": _leave_and_park,
    "leave, work": _leave_and_work,
    "leave, wait": _leave_and_wait,
    "leave, register": _leave_and_register,
    "park for nothing": _park_for_nothing,
}
"""By the names that `Job.ends` gives them."""


class _Client:
    """What a job needs of its client: the store, which is far away."""

    def __init__(self, process: Process) -> None:
        self._process = process

    @property
    def operations(self) -> Any:
        return self

    def register_callback(
        self, attempt: Attempt, timeout: float, expressions: str | None, before: str | None
    ) -> Op[Registered | None]:
        far = self._process.store.register_callback(attempt, timeout, expressions, before)

        def plan() -> Plan[Registered | None]:
            found: Registered | None = yield cast("Any", far)  # a step that only a Script takes
            return found

        return Op(far.name, plan, safe_to_retry=far.safe_to_retry)


class Script:
    """A handler at work. job: what it was given. over: called with how it ended."""

    def __init__(
        self,
        world: Simulation,
        process: Process,
        start: StartJob,
        name: str,
        over: Callable[[Returned | Raised], object],
    ) -> None:
        self._world = world
        self._process = process
        self._attempt = start.attempt
        self._over = over
        self._turn = 0
        self.job: SimulatedJob = JobBase(start, _Client(process))
        self.job.carry(process.carry)
        self._steps = SCRIPTS[name](self.job, lambda token: world.give(token.id))
        world.at(world.now, partial(self._go_on, 0))

    def close(self) -> None:
        """It has ended, whatever it was doing."""
        self._turn = -1
        self.job.seal()
        self._steps.close()

    def _go_on(self, turn: int, value: object = None, error: Exception | None = None) -> None:
        """What it waited for has come, unless it goes on already."""
        if turn != self._turn or not self._process.goes_on(partial(self._go_on, turn, value, error)):
            return
        self._turn += 1
        try:
            step = self._steps.send(value) if error is None else self._steps.throw(error)
        except StopIteration as done:
            self._over(Returned(done.value))
        except Exception as raised:  # noqa: BLE001  how the handler ended
            self._over(Raised(raised))
        else:
            self._take(step)

    def _take(self, step: float | Op[CallbackToken] | Wait) -> None:
        world, turn = self._world, self._turn
        if isinstance(step, Wait):
            self._begin_to_wait(step)
        elif isinstance(step, Op):
            self._perform(step, Retries(step, "awa", world.random.random), turn)
        else:
            world.at(world.now + step, partial(self._go_on, turn))

    # register

    def _perform(self, op: Op[CallbackToken], retries: Retries, turn: int) -> None:
        world = self._world
        if turn != self._turn or not self._process.goes_on(partial(self._perform, op, retries, turn)):
            return
        plan = op.start()
        try:
            far: Any = next(plan)
        except StopIteration as done:
            self._go_on(turn, done.value)
            return
        except AttemptEnded as error:
            self._go_on(turn, error=error)
            return
        takes = world.faults.takes(world.random)
        answer, reached = world.now + takes, world.now + takes * world.random.random()
        fault = world.interfere(self._process.number, RunOp(0, far, Lane.MAINTENANCE))
        if fault is None:
            fault = world.faults.strike(op.name, world.random)
        failed = partial(self._failed, op, retries, turn)
        if isinstance(fault, DatabaseError):
            world.at(answer, partial(failed, fault))
        elif fault is Fault.REFUSED_ENTRY:
            world.at(answer, partial(failed, refusal(world.random)))
        elif fault is Fault.NONE:
            world.at(reached, lambda: world.at(answer, partial(self._answered, plan, play(far), turn)))
        else:
            late = answer + takes * 3 * world.random.random() if fault is Fault.DONE_LATER else reached
            world.at(late, partial(play, far))
            world.at(answer, partial(failed, silence()))

    def _answered(self, plan: Plan[CallbackToken], found: Registered | None, turn: int) -> None:
        if turn != self._turn or not self._process.goes_on(partial(self._answered, plan, found, turn)):
            return
        try:
            plan.send(found)
        except StopIteration as done:
            self._go_on(turn, done.value)
        except AttemptEnded as error:
            self._world.accounts.tokens.was_refused(self._attempt)
            self._go_on(turn, error=error)

    def _failed(self, op: Op[CallbackToken], retries: Retries, turn: int, error: DatabaseError) -> None:
        try:
            wait = retries.after(error)
        except DatabaseError as last:
            self._go_on(turn, error=last)
        else:
            self._world.at(self._world.now + wait, partial(self._perform, op, retries, turn))

    # wait

    def _begin_to_wait(self, wait: Wait) -> None:
        world, turn = self._world, self._turn
        asked: WaitAsked | None = None

        def told(end: WaitEnd) -> None:
            assert asked is not None
            world.at(world.now + world.loop_delay(), partial(self._waited, turn, asked, end))

        try:
            asked = self.job.begin_wait(wait.token, told)
        except Exception as error:  # noqa: BLE001  there is nothing to wait for any more
            world.at(world.now, partial(self._go_on, turn, error=error))
            return
        if wait.patience is not None:
            world.at(world.now + wait.patience, partial(self._leave, turn, asked))

    def _waited(self, turn: int, asked: WaitAsked, end: WaitEnd) -> None:
        if turn != self._turn or not self._process.goes_on(partial(self._waited, turn, asked, end)):
            return
        self.job.end_wait(asked)
        tokens = self._world.accounts.tokens
        try:
            payload = self.job.waited(asked, end)
        except Exception as error:  # noqa: BLE001  it waits in vain
            if isinstance(error, CallbackNotFound):
                tokens.came_to_nothing(asked.callback_id)
            self._go_on(turn, error=error)
        else:
            tokens.went_on(asked.callback_id, payload)
            self._go_on(turn, payload)

    def _leave(self, turn: int, asked: WaitAsked) -> None:
        """Its own patience is at its end, perhaps while the answer is on its way."""
        if turn == self._turn and self._process.goes_on(partial(self._leave, turn, asked)):
            self.job.end_wait(asked)
            self._go_on(turn, error=TimeoutError())
