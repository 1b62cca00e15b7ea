"""PgQueuer with batches of four times the concurrency asked for, its fastest on two cores.

Up to so many handlers may then run at once. Its figures stand beside those of `pgqueuer`, which keeps to the concurrency.
"""

from functools import partial

from benchmarks.systems import peer_pgqueuer

install = peer_pgqueuer.install
produce = peer_pgqueuer.produce
work = partial(peer_pgqueuer.work, wide=4)
