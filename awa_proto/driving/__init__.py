"""What drivers share and the core does not touch: threads, what psycopg has to be told, methods that are awaited.

Here, and only here, `awa_proto` may import threading or psycopg; only the drivers import it. An import contract says so.
"""
