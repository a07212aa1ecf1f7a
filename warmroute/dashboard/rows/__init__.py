"""The dashboard's rows, in the order in which one reads them."""

from warmroute.dashboard.panel import Row
from warmroute.dashboard.rows.clients import CLIENTS
from warmroute.dashboard.rows.decisions import DECISIONS
from warmroute.dashboard.rows.fleet import FLEET
from warmroute.dashboard.rows.gateway import GATEWAY
from warmroute.dashboard.rows.worth import WORTH

ROWS: tuple[Row, ...] = (WORTH, CLIENTS, FLEET, DECISIONS, GATEWAY)
