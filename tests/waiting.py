"""Waiting for a state with a deadline, so that no test guesses how long something takes."""

import asyncio
from collections.abc import Callable

DEADLINE_S = 30.0
_STEP_S = 0.005


async def until(condition: Callable[[], bool], what: str = "the condition") -> None:
    """Return as soon as ``condition`` holds. Raises AssertionError at the deadline."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + DEADLINE_S
    while not condition():
        assert loop.time() < deadline, f"{what} did not hold within {DEADLINE_S:g} s"
        await asyncio.sleep(_STEP_S)
