"""For tests, of the library and of applications: nothing else imports it."""
