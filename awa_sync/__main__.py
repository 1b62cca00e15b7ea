"""`python -m awa_sync`: the `awa` command."""

from awa_sync.cli import main

main()
