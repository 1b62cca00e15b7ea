"""awa_asyncio on psycopg."""

from functools import partial

from benchmarks.systems import our_asyncio

install = partial(our_asyncio.install, "psycopg")
produce = partial(our_asyncio.produce, "psycopg")
work = partial(our_asyncio.work, "psycopg")
