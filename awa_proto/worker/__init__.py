"""The worker machine: everything a worker decides, without I/O, clock, threads or tasks of its own."""
