"""`python -m bench.reliability.watched_gateway FILE [flags]`: a gateway with a watchdog.

It is `warmroute router`, of which these are the flags; its measurement of the loop's lag is
replaced by the finer one of the watchdog.
"""

import sys
from pathlib import Path

import router.serve
from bench.reliability.watchdog import WatchedLag
from warmroute.cli import main

if __name__ == "__main__":
    with Path(sys.argv[1]).open("w") as WatchedLag.output:
        # The seam is a name: a setting for this would be one that nobody else has a use for.
        setattr(router.serve, "LoopLag", WatchedLag)  # noqa: B010  # mypy forbids the plain form
        sys.exit(main(["router", *sys.argv[2:]]))
