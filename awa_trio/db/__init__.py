"""PostgreSQL for trio: psycopg without asyncio, a small pool, and the core's Ops on top."""
