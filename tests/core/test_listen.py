"""The listening connection, when somebody is between it and the server: an echo says whether notifications arrive."""

from __future__ import annotations

from awa_proto.store import Promoted, Registration, Ring
from awa_proto.worker.events import Emit, ListenOpened, Woken
from awa_proto.worker.listen import DEAF_FOR, ECHO_WITHIN, Line
from tests.core.test_machine import NOON, Bench, of


def pooled() -> Bench:
    """Registered, its listening connection open to a process 5, while process 9 has answered."""
    bench = Bench()
    bench.done("register", Registration(7, Ring(1), {}, NOON))
    bench.hear(ListenOpened(5))
    bench.done("withdraw", 9)
    bench.done("promote", Promoted(0))
    return bench


def line(bench: Bench) -> Line:
    return bench.machine._listener.line


def test_a_connection_to_the_process_that_answers_is_trusted_at_once() -> None:
    bench = Bench()
    bench.done("register", Registration(7, Ring(1), {}, NOON))
    bench.hear(ListenOpened(5))
    bench.done("withdraw", 5)
    assert bench.machine.is_listening
    assert "echo" not in bench.ops


def test_behind_a_pooler_that_keeps_sessions_the_echo_is_heard() -> None:
    bench = pooled()
    assert (line(bench), bench.machine.is_listening) == (Line.TRYING, False)
    bench.done("echo")
    bench.hear(Woken("?another's"))
    assert line(bench) is Line.TRYING
    bench.hear(Woken(bench.machine._listener._echo))
    assert bench.machine.is_listening


def test_behind_one_that_does_not_it_polls_says_so_once_and_announces_nothing() -> None:
    bench = pooled()
    bench.done("echo")
    said = bench.wait(ECHO_WITHIN)
    assert (line(bench), bench.machine.is_listening) == (Line.DEAF, False)
    assert [emit.key for emit in of(Emit, said) if emit.level >= 30] == ["listen failed"]
    polls = bench.machine.health(bench.now, 0.0).listening.polls_because
    assert polls is not None
    assert "pooler" in polls
    bench.ops.clear()
    said = bench.wait(1.1 * DEAF_FOR)
    assert "withdraw" in bench.ops, "it tries again"
    bench.done("withdraw", 9)
    said += bench.wait(ECHO_WITHIN)
    assert line(bench) is Line.DEAF
    assert "listen failed" not in [emit.key for emit in of(Emit, said)]
    assert bench.store.announcements == []
    assert "awa.listen.lost" not in bench.machine.health(bench.now, 0.0).counts
