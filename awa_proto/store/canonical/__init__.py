"""Canonical storage: the simple engine, a row per job, updated in place. Deprecated: queue storage is better at everything.

`jobs_hot` has every job but those that are not due, which `scheduled_jobs` has. What says something about a queue, a worker, a
unique key or a dead letter is in the tables of queue storage, and what is done to single jobs is looked for in both engines;
so the statements of each engine know the other's, and the store is in a module of its own, `store.py`.
"""

import awa_proto.store.queue  # noqa: F401  it imports modules of this package, so it comes first whoever is asked for
