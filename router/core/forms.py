"""What routing needs of a form (multipart/form-data, RFC 7578): audio comes with its model so."""

import re
from itertools import islice

_HEADERS = rb"\r\n((?:[^\r\n]{1,1024}+\r\n){1,8}+)\r\n"
_OPENING = re.compile(rb"\s*+(--[^\r\n]{1,70}+)\r\n")
_NAME = re.compile(
    rb'^content-disposition:[^\r\n]*;[ \t]*name=(?:"(model|stream)"|(model|stream)(?=[;\s]))',
    re.IGNORECASE | re.MULTILINE,
)
_VALUE_BYTES_MAX = 1024
_PARTS_MAX = 256


def form_fields(body: bytes) -> dict[str, str]:
    """Return the fields ``model`` and ``stream`` of a form, as far as it has them.

    The last of several counts, as engines have it. What is no form has none.
    """
    opening = _OPENING.match(body)
    if opening is None:
        return {}
    boundary = opening[1]
    found: dict[str, str] = {}
    parts = re.finditer(re.escape(boundary) + _HEADERS, body)
    for part in islice(parts, _PARTS_MAX):
        name = _NAME.search(part[1])
        if name is None:
            continue
        end = body.find(b"\r\n" + boundary, part.end(), part.end() + _VALUE_BYTES_MAX)
        if end >= 0:
            found[(name[1] or name[2]).decode().lower()] = body[part.end() : end].decode(
                "utf-8", "replace"
            )
    return found
