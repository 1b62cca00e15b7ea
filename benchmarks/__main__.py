"""`python -m benchmarks SCENARIO`."""

import sys

from benchmarks.cli import main

sys.exit(main())
