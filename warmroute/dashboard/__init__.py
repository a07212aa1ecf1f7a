"""The Grafana dashboard as code: panels are data in ``rows``, Grafana's JSON is in ``grafana``."""
