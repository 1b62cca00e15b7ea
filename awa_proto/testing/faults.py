"""What goes wrong in a simulated world, drawn from its seed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import Final

from awa_proto.errors import DatabaseError


class Fault(Enum):
    """How an Op goes wrong."""

    NONE = "it does not"
    REFUSED_ENTRY = "it fails before anything was done"
    ANSWER_LOST = "it is done, and its answer is lost"
    DONE_LATER = "its connection breaks, and the server does it a moment later all the same"
    HALF_DONE = "some of its statements commit, then its connection breaks"
    OUTRUN = "another one of the same kind is faster: again"


_BEFORE: Final = (
    ("40001", True),  # serialization failure
    ("55P03", True),  # lock timeout
    ("57014", True),  # statement timeout
    ("57P03", True),  # cannot connect now
    ("25006", True),  # read-only
    (None, False),  # the connection was dead already
)


@dataclass(frozen=True, slots=True)
class Faults:
    """How often what goes wrong: probabilities, and seconds.

    entry, lost, later, half, outrun: see Fault. latency: the mean of an Op; slow: how often one takes thirty times as
    long. answer_twice: how often an answer comes again. notice_lost, notice_twice: of notifications. deaf: how often an Op
    is followed by the loss of the listening connection.
    """

    entry: float = 0.0
    lost: float = 0.0
    later: float = 0.0
    half: float = 0.0
    outrun: float = 0.0
    latency: float = 0.001
    slow: float = 0.0
    answer_twice: float = 0.0
    notice_lost: float = 0.0
    notice_twice: float = 0.0
    deaf: float = 0.0

    @classmethod
    def draw(cls, random: Random) -> Faults:
        """Some mixture, from a calm world to an awful one."""
        force = random.choice((0.0, 0.02, 0.1, 0.3))

        def some() -> float:
            return force * random.random()

        return cls(
            entry=some(), lost=some(), later=some(), half=some(), outrun=some(),
            latency=random.choice((0.0005, 0.002, 0.02)), slow=some() / 4,
            answer_twice=some(),
            notice_lost=some() * 2, notice_twice=some(), deaf=some() / 5,
        )  # fmt: skip

    def strike(self, op: str, random: Random) -> Fault:
        """What happens to this Op."""
        dice = random.random()
        if dice >= self.entry + self.lost + self.later + self.half + self.outrun:
            return Fault.NONE
        for fault, likely in (
            (Fault.REFUSED_ENTRY, self.entry),
            (Fault.ANSWER_LOST, self.lost),
            (Fault.DONE_LATER, self.later),
            (Fault.HALF_DONE, self.half if op == "finalize" else 0.0),
            (Fault.OUTRUN, self.outrun if op in {"claim", "finalize"} else 0.0),
        ):
            dice -= likely
            if dice < 0:
                return fault
        return Fault.NONE

    def takes(self, random: Random) -> float:
        """Seconds until the answer."""
        seconds = self.latency * (0.5 + random.random())
        return seconds * 30 if random.random() < self.slow else seconds


def refusal(random: Random) -> DatabaseError:
    """An error after which nothing has been done."""
    sqlstate, sent = random.choice(_BEFORE)
    return DatabaseError("simulated: nothing was done", sqlstate, sent=sent)


def silence() -> DatabaseError:
    """An error after which nobody knows."""
    return DatabaseError("simulated: the connection broke", None)


def is_down() -> DatabaseError:
    """The server accepts no connections."""
    return DatabaseError("simulated: the server is down", "57P03")
