"""What the data plane tells the fleet of an answer's pace; what is made of it is tested there."""

import asyncio

import pytest

from router.core.rates import STREAM_TOKENS_MIN
from tests.router.gateway.running import clock_us, gateway_of
from tests.router.gateway.scripted_replica import ScriptedReplica, Turn, answering
from tests.router.gateway.wire import DONE, LAST_CHUNK, STREAM_HEAD, chunk, completion, event, ok

USAGE = {"prompt_tokens": 100, "completion_tokens": 2, "total_tokens": 102}
TOKEN_S = 0.002


async def token_us_after(pieces: list[bytes]) -> float | None:
    async def script(turn: Turn) -> None:
        await turn.send(STREAM_HEAD)
        for piece in pieces:
            await asyncio.sleep(TOKEN_S)
            await turn.send(chunk(piece))
        await turn.send(chunk(DONE) + LAST_CHUNK)

    async with ScriptedReplica(script) as replica, gateway_of(replica) as gateway:
        await gateway.chat("hello", stream=True)
        await gateway.record()
        gateway.fleet.tick(clock_us())
        return gateway.fleet.views()[0].view.token_us


TOKENS = [event(f"t{number}") for number in range(STREAM_TOKENS_MIN)]


async def test_tokens_are_counted_in_chunks_where_the_engine_does_not_count_them() -> None:
    assert await token_us_after([*TOKENS, event("", "stop")]) is not None


async def test_the_engines_own_count_is_believed_before_that_of_chunks() -> None:
    assert await token_us_after([*TOKENS, event("", "stop", usage=USAGE)]) is None


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_in_one_piece_tells_nothing(stream: bool) -> None:
    async with (
        ScriptedReplica(answering(ok(completion()))) as replica,
        gateway_of(replica) as gateway,
    ):
        await gateway.chat("hello", stream=stream)
        await gateway.record()
        gateway.fleet.tick(clock_us())

        assert gateway.fleet.views()[0].view.token_us is None
