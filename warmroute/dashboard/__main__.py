"""``python -m warmroute.dashboard FILE``: write the dashboard."""

import sys
from pathlib import Path

from warmroute.dashboard.grafana import dashboard_json
from warmroute.dashboard.rows import ROWS

Path(sys.argv[1]).write_text(dashboard_json(ROWS))
