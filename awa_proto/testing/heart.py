"""The heartbeat of a worker process of the simulated world: its thread, and its own connection."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from awa_proto.errors import DatabaseError
from awa_proto.testing.faults import Fault, silence
from awa_proto.testing.simulator import Simulation, play
from awa_proto.worker.events import Emit, OpDone, OpFailed, Ping, Pinged, RunOp
from awa_proto.worker.heartbeat import Heartbeat

if TYPE_CHECKING:
    from awa_proto.testing.process import Process


class Heart:
    """The thread of a process's heartbeat.

    fails: whether its statements do not reach the database.
    """

    def __init__(self, world: Simulation, process: Process, machine: Heartbeat) -> None:
        self._world = world
        self._process = process
        self.machine = machine
        self.fails = False
        machine.start(process.clock)
        self.go_on()

    def go_on(self) -> None:
        """Carry out what its machine says, and come back when it wants to."""
        world, process = self._world, self._process
        if not process.is_alive:
            return
        while (output := self.machine.poll_output()) is not None:
            world.beats.append((world.now, process.number, output))
            match output:
                case RunOp():
                    self._run(output)
                case Ping(number=number):
                    process.put(Pinged(number))
                case Emit(key=key):
                    world.told[key] += 1
        due = self.machine.next_deadline()
        if due is not None:
            world.at(max(process.moment(due), world.now), self._ring)

    def _ring(self) -> None:
        due = self.machine.next_deadline()
        if self._process.goes_on(self._ring) and due is not None and due <= self._process.clock:
            self.machine.handle_timeout(self._process.clock)
            self.go_on()

    def _run(self, run: RunOp) -> None:
        world = self._world
        takes = world.takes(run.lane)
        fault = world.interfere(self._process.number, run) or world.faults.strike(run.op.name, world.random)
        if self.fails or isinstance(fault, DatabaseError) or fault is Fault.REFUSED_ENTRY:
            world.at(world.now + takes, partial(self._answer, OpFailed(run.id, silence())))
        elif fault is Fault.NONE:
            world.at(world.now + takes, partial(self._execute, run))
        else:
            late = takes if fault is Fault.ANSWER_LOST else takes * 4 * world.random.random()
            world.at(world.now + late, partial(play, run.op))
            world.at(world.now + takes, partial(self._answer, OpFailed(run.id, silence())))

    def _execute(self, run: RunOp) -> None:
        if self._process.is_alive:
            self._answer(OpDone(run.id, play(run.op)))

    def _answer(self, answer: OpDone | OpFailed) -> None:
        if self._process.goes_on(partial(self._answer, answer)):
            self.machine.handle(answer, self._process.clock)
            self.go_on()
