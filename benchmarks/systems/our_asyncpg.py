"""awa_asyncio on asyncpg."""

from functools import partial

from benchmarks.systems import our_asyncio

install = partial(our_asyncio.install, "asyncpg")
produce = partial(our_asyncio.produce, "asyncpg")
work = partial(our_asyncio.work, "asyncpg")
