"""Which model is meant by a long body that could not be read: to guess would be to ask any."""

import asyncio
import re

import msgspec

from router.core.forms import form_fields
from router.gateway.json_text import JsonText

_SLICE_BYTES = 64 * 1024  # looked at in one turn of the event loop: some milliseconds
_FIELD_BYTES_MAX = 1024
_MODEL = re.compile(rb'"model"\s*+:\s*+("(?:[^"\\]++|\\.)*+")')
_decode_text = msgspec.json.Decoder(str).decode


async def model_named(body: bytes) -> str | None:
    """Return the model that a body in JSON, or a form near its ends, names; None if it does not."""
    if not body[:_FIELD_BYTES_MAX].lstrip().startswith(b"{"):
        return form_fields(body[:_SLICE_BYTES] + body[-_SLICE_BYTES:]).get("model")
    text, named, done = JsonText(), None, 0
    for start in range(0, len(body), _SLICE_BYTES):
        end = min(start + _SLICE_BYTES, len(body))
        for field in _MODEL.finditer(body, start, end + _FIELD_BYTES_MAX):
            if done <= field.start() < end:
                text.take(body[done : field.start()])
                done = field.start()
                if text.is_among_fields:
                    named = field[1]  # of several the last counts, as engines have it
        text.take(body[done:end])
        done = end
        await asyncio.sleep(0)
    try:
        return None if named is None else _decode_text(named)
    except msgspec.DecodeError:
        return None
