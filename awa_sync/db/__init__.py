"""PostgreSQL for blocking code: psycopg with a deadline on every wait, a small pool, and the core's Ops on top."""
