"""Cron: jobs that are enqueued by the clock.

schedule      | when: an expression in a time zone
job           | what: a cron job as the database has it, and which of its fires are due
registration  | `periodic(...)` of clients and tasks
operations    | what people ask of cron jobs and do to them
"""
