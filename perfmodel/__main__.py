"""``python -m dpmd.perfmodel`` is ``dp-perf``."""

import sys

from .cli import main

sys.exit(main())
