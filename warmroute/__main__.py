"""``python -m warmroute``."""

import sys

from warmroute.cli import main

sys.exit(main())
