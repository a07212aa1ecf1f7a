"""The demo: real processes, a real trace, one table."""
