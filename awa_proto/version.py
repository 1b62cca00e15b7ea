"""The version of this distribution, as pyproject.toml has it; a test compares the two."""

from typing import Final

VERSION: Final = "0.1.0"
