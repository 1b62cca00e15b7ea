"""Looking at a socket that belongs to a library, without taking anything from it."""

import select
import sys

if sys.platform != "win32":

    def is_readable(fd: int) -> bool:
        """Whether something came that nobody has read, the end included."""
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        return bool(poll.poll(0))

else:

    def is_readable(fd: int) -> bool:
        """Whether something came that nobody has read, the end included."""
        return bool(select.select([fd], [], [], 0)[0])
