"""How many examples a law gets that needs more of them than others, or fewer."""

from hypothesis import settings


def examples(times: float) -> int:
    """Return so many times the examples of the profile in use, of which `make check` has few."""
    return round(times * settings().max_examples)
