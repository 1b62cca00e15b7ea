"""A worker in a dump of another cluster: it has it rebased, once, and then begins or goes on."""

from awa_proto.errors import DatabaseError, Failure
from awa_proto.store import Registration, Ring
from awa_proto.worker.events import OpFailed, RunOp
from tests.core.test_machine import NOON, Bench, of


def _fail(bench: Bench, name: str) -> None:
    error = DatabaseError("a dump of another cluster", "55000")
    error.failure = Failure.RESTORED
    bench.hear(OpFailed(bench.ops.pop(name).id, error))


def _rebases(bench: Bench) -> int:
    return sum(run.op.name == "rebase" for run in of(RunOp, bench.said))


def _registered(bench: Bench) -> None:
    """What was slow has plans made anew; then comes the registration."""
    bench.wait(10.0)
    if "replan" in bench.ops:
        bench.done("replan")
    bench.done("register", Registration(7, Ring(1), {}, NOON))


def test_registration_waits_for_the_rebase_and_tries_again() -> None:
    bench = Bench()
    _fail(bench, "register")
    assert "rebase" in bench.ops
    bench.wait(5.0)
    assert "register" not in bench.ops  # it waits in line
    bench.done("rebase", True)
    _registered(bench)
    assert "claim" in bench.ops
    assert _rebases(bench) == 1


def test_a_rebase_that_failed_is_tried_again_with_the_registration() -> None:
    bench = Bench()
    for _ in range(3):
        _fail(bench, "register")
        bench.failed("rebase", "55P03")
        bench.wait(11.0)
        if "replan" in bench.ops:
            bench.done("replan")
    assert _rebases(bench) == 3
    _registered(bench)


def test_a_claim_that_finds_out_has_it_rebased_once() -> None:
    bench = Bench().running()
    _fail(bench, "claim")
    bench.wait(1.0)
    if "claim" in bench.ops:
        _fail(bench, "claim")
    bench.wait(1.0)
    assert _rebases(bench) == 1
    bench.done("rebase", True)
    bench.wait(20.0)
    assert "claim" in bench.ops
