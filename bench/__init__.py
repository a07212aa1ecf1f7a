"""Measurements of warmroute, beside other routers and of its own parts."""
