"""An environment for each peer under `.venv-bench/`, so that their dependencies never meet ours."""

import subprocess
import sys
from pathlib import Path

from benchmarks.systems import System

ROOT = Path(__file__).resolve().parent.parent


def python(system: System) -> Path:
    """Return the interpreter that has this system, after installing it if need be."""
    if not system.needs:
        return Path(sys.executable)
    home = ROOT / ".venv-bench" / (system.environment or system.name)
    interpreter, stamp = home / "bin" / "python", home / ".installed"
    if not (stamp.exists() and stamp.read_text() == _wanted(system)):
        print(f"installing {system.name} into {home}", file=sys.stderr)
        _run(sys.executable, "-m", "venv", "--clear", "--without-pip", str(home))
        _run(sys.executable, "-m", "pip", "--python", str(interpreter), "install", "--quiet", *system.needs)
        stamp.write_text(_wanted(system))
    return interpreter


def version(system: System) -> str:
    """Ask the system's own environment."""
    ask = "import importlib.metadata, sys; print(importlib.metadata.version(sys.argv[1]))"
    return _run(str(python(system)), "-c", ask, system.distribution).strip()


def _wanted(system: System) -> str:
    return f"{sys.version}\n{' '.join(system.needs)}\n"


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr.strip()}")
    return done.stdout
