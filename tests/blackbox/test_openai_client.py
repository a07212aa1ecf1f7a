"""The official OpenAI client against the gateway: what most users will point at it."""

import openai
import pytest

from tests.blackbox.conftest import MODEL
from warmroute.demo.fleet import Fleet

pytestmark = pytest.mark.blackbox


@pytest.fixture
def client(fleet: Fleet) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{fleet.url}/v1", api_key="sk-none", max_retries=0)


async def test_the_openai_client_gets_what_it_expects(client: openai.AsyncOpenAI) -> None:
    models = [model.id async for model in client.models.list()]
    chat = await client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "hello"}], max_tokens=7
    )
    completion = await client.completions.create(model=MODEL, prompt="hello", max_tokens=5)
    stream = await client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "hello"}],
        max_tokens=7,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    with pytest.raises(openai.NotFoundError) as not_found:
        await client.chat.completions.create(
            model="no-such-model", messages=[{"role": "user", "content": "hello"}]
        )
    await client.close()

    assert models == [MODEL]
    assert chat.choices[0].finish_reason == "length"
    assert chat.usage is not None
    assert chat.usage.completion_tokens == 7
    assert completion.usage is not None
    assert completion.usage.completion_tokens == 5
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == chat.choices[0].message.content
    assert [c.choices[0].delta.role for c in chunks if c.choices][:1] == ["assistant"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.prompt_tokens == chat.usage.prompt_tokens
    assert not_found.value.code == "model_not_found"
    assert not_found.value.type == "invalid_request_error"
    assert "no-such-model" in not_found.value.message
