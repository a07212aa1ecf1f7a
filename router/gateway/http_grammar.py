"""What heads, trailers and the last chunk look like (RFC 9112, without what it calls obsolete)."""

import re

_FIELD = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]++:[\t\x20-\x7e\x80-\xff]*+\r\n"
# No fragment: a replica cuts it off, and would be asked for another path than was looked at here.
_TARGET = rb"[\x21\x22$-~]++"
REQUEST_HEAD = re.compile(
    rb"([A-Z]{1,20}+) (" + _TARGET + rb") HTTP/1\.([01])\r\n(?:" + _FIELD + rb")*+"
)
ANSWER_HEAD = re.compile(
    rb"HTTP/1\.([01]) ([1-9][0-9][0-9])(?: [\t\x20-\x7e\x80-\xff]*+)?\r\n(?:" + _FIELD + rb")*+"
)
TRAILERS = re.compile(rb"(?:" + _FIELD + rb")*+\r\n")
"""What may stand between the last chunk's size line and the end."""

LAST_CHUNK = re.compile(rb"(?<=\n)0++(?:;[^\r\n]*+)?+\r\n(?:" + _FIELD + rb")*+\r\n\Z")

FIRST_LINE = re.compile(rb"([A-Z]{1,20}+) (/[\x21\x22$-~]*+) HTTP/1\.[01]\r\n")
NAMED_FIELD = re.compile(
    rb"\r\n(origin|x-request-id):[\t ]*+([\x21-\x7e]{1,128})[\t ]*+(?=\r\n)", re.IGNORECASE
)
"""Of a head that is refused: whom to answer, and in what shape."""

ODD_FIELD = re.compile(
    rb"\r\n(?:content_length|transfer_encoding):"
    rb"|\r\nhost:[\t ]*+(?![!$%&'()*+,\-.0-9:;=A-Z\[\]_a-z~]*+[\t ]*+\r\n)",
    re.IGNORECASE,
)
"""A name that some servers take for the one with -, and a Host that is none (RFC 3986, 3.2.2)."""
