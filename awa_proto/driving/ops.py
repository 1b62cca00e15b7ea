"""How an Op is carried to a connection, whatever carries it: the trampoline, and in what words its failure leaves.

A driver adds the connection, the transaction around it, and the waiting.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from awa_proto.errors import DatabaseError, Failure, not_migrated
from awa_proto.plan import Op, Step

T = TypeVar("T")

_log = logging.getLogger("awa")


def drive(plan: Generator[Step, Any, T], perform: Callable[[Step], Any]) -> T:
    """The trampoline: feed a plan with what it asks for, until it returns."""
    try:
        step = next(plan)
        while True:
            try:
                rows = perform(step)
            except DatabaseError as error:
                step = plan.throw(error)
            else:
                step = plan.send(rows)
    except StopIteration as done:
        result: T = done.value
        return result
    finally:
        plan.close()


async def drive_awaited(plan: Generator[Step, Any, T], perform: Callable[[Step], Awaitable[Any]]) -> T:
    """The trampoline of drivers that await."""
    try:
        step = next(plan)
        while True:
            try:
                rows = await perform(step)
            except DatabaseError as error:
                step = plan.throw(error)
            else:
                step = plan.send(rows)
    except StopIteration as done:
        result: T = done.value
        return result
    finally:
        plan.close()


def seconds_of(op: Op[Any], default: float) -> float:
    """What each statement of `op` may take."""
    return default if op.timeout is None else op.timeout


@contextmanager
def schema_named(schema: str) -> Iterator[None]:
    """Around an Op in a transaction of ours: when a table of ours is missing, the error says how to migrate."""
    try:
        yield
    except DatabaseError as error:
        if error.failure is Failure.NOT_MIGRATED:
            raise not_migrated(schema) from error
        raise


@contextmanager
def errors_of_library(schema: str, library_error: type[Exception]) -> Iterator[None]:
    """Around an Op in a caller's transaction: what the library raised leaves as it is, since the caller handles that.

    library_error: what the library raises; a DatabaseError with another cause, or none, is the driver's own.
    """
    try:
        yield
    except DatabaseError as error:
        if error.failure is Failure.NOT_MIGRATED:
            raise not_migrated(schema) from error
        if not isinstance(error.__cause__, library_error):
            raise
        original = error.__cause__
    else:
        return
    raise original


@contextmanager
def users_sql() -> Iterator[None]:
    """Around a statement of a user's own: a table that is missing there is not one of ours."""
    try:
        yield
    except DatabaseError as error:
        error.is_of_users_sql()
        raise


class Preparing:
    """Whether statements are prepared on the server: until the first sign of a pooler that loses them."""

    on = True

    def learn_from(self, error: BaseException) -> None:
        """Turn preparing off, once, if that is what `error` means."""
        if self.on and isinstance(error, DatabaseError) and error.failure is Failure.UNPREPARED:
            self.on = False
            _log.warning("prepared statements are off from here on, a connection pooler seems to lose them: %s", error)
