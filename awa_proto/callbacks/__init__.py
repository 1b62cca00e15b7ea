"""Callbacks: jobs that wait for a word from outside.

token         | what leaves the process
operations    | what comes back: complete, fail, retry, resume, give more time, resolve
expressions   | what a payload means to a job that registered expressions
cel           | one expression: checked, limited, compiled, evaluated
ingress       | requests over HTTP that end in calls about callbacks, without the I/O
signature     | who made such a request
"""
