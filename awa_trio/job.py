"""Job and BlockingJob: what the handlers of trio get."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from awa_proto.blocking import BlockingClient
from awa_proto.handler import JobBase

if TYPE_CHECKING:
    from awa_trio.client import Client  # noqa: F401  named in a base class below

A_co = TypeVar("A_co", covariant=True)


class Job(JobBase[A_co, "Client"]):
    """What an `async def` handler gets: the attempt, its args, and the client."""

    __slots__ = ()


class BlockingJob(JobBase[A_co, BlockingClient]):
    """What a plain handler gets, in its thread: the attempt, its args, and a client whose calls wait."""

    __slots__ = ()
