"""The core of awa: no I/O, no clock, no randomness of its own, no async, no threads."""
