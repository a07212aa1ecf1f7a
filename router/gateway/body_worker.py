"""The process that reads long bodies: questions on its standard input, answers on its output.

    question   lengths of both parts (8 bytes each), a Question in MessagePack, the body
    answer     its length (8 bytes), an Answer in MessagePack

One at a time, until the input ends: so it ends with its gateway, however that ends.
"""

import resource
import sys
import zlib
from struct import Struct
from typing import BinaryIO

import msgspec

from contract.failures import Failure
from router.core.config import RoutingConfig
from router.core.request import BadRequestError, route_request
from router.core.view import RouteRequest

LENGTHS = Struct("<QQ")
LENGTH = Struct("<Q")
PROMPT_BYTES_MAX = 4 * 1024 * 1024
"""How much of a prompt is looked for in the index: a million tokens. The rest counts as work."""

NO_ID = ""
"""Whoever asked gives the request its own."""

MEMORY_BYTES_MAX = 4 * 1024 * 1024 * 1024
"""Address space: a body of millions of tiny objects takes many times its bytes."""

MEMBERS_MAX = 64
"""Of one body in gzip (RFC 1952, 2.2); each costs a copy of all that follows it."""

_GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS


class Question(msgspec.Struct):
    """All but the body itself."""

    path: str
    session_key: str | None
    tenant: str
    encoding: str
    decoded_bytes_max: int


class Answer(msgspec.Struct):
    """What routing sees, or why the request is refused; both where the body could not be read."""

    request: RouteRequest | None = None
    failure: str = ""  # name of a Failure
    message: str = ""
    param: str | None = None


encode_question = msgspec.msgpack.Encoder().encode
decode_answer = msgspec.msgpack.Decoder(Answer).decode


def unread(
    question: Question, num_bytes: int, config: RoutingConfig, failure: Failure, message: str
) -> Answer:
    """Return a request of which nothing is known but its length: it is routed by load alone.

    Where its model has to be known, it is refused with ``failure``.
    """
    tokens = max(1, round(num_bytes / config.bytes_per_token))
    request = RouteRequest(NO_ID, None, tokens, session_key=question.session_key)
    return Answer(request, failure.name, message)


def answer_of(question: Question, body: bytes, config: RoutingConfig) -> Answer:
    """Read one body. One in an encoding that is not known here is the replica's to judge."""
    try:
        plain = _decoded(body, question)
        if plain is None:
            message = (
                f"a body in {question.encoding[:40]!r} cannot be read here, and which of several "
                "models it names must be known; send it plain, or in gzip or deflate"
            )
            return unread(question, len(body), config, Failure.UNSUPPORTED_ENCODING, message)
        request = route_request(
            question.path, plain, NO_ID, config, question.session_key, question.tenant
        )
    except BadRequestError as error:
        return Answer(failure=error.failure.name, message=error.message, param=error.param)
    except MemoryError:
        message = "the body takes more memory than there is to read it"
        return unread(question, len(body), config, Failure.BODY_TOO_LARGE, message)
    request.prompt = request.prompt[:PROMPT_BYTES_MAX]
    return Answer(request)


def _decoded(body: bytes, question: Question) -> bytes | None:
    """Return the body as it was before it was compressed; None where that cannot be told."""
    if question.encoding in ("", "identity"):
        return body
    if question.encoding not in ("gzip", "x-gzip", "deflate"):
        return None
    plain, limit = b"", question.decoded_bytes_max
    for _ in range(MEMBERS_MAX):
        inflater = zlib.decompressobj(_GZIP_OR_ZLIB)
        try:
            plain += inflater.decompress(body, limit + 1 - len(plain))
        except zlib.error:
            return plain or None  # what follows the last member is no part of it
        if len(plain) > limit:
            message = f"the body of the request is over {limit} bytes when it is decompressed"
            raise BadRequestError(Failure.BODY_TOO_LARGE, message)
        if not inflater.eof:
            return None
        body = inflater.unused_data
        if not body:
            return plain
    return None


def serve(questions: BinaryIO, answers: BinaryIO, config: RoutingConfig) -> None:
    """Answer until the input ends."""
    encode = msgspec.msgpack.Encoder().encode
    decode = msgspec.msgpack.Decoder(Question).decode
    while len(lengths := questions.read(LENGTHS.size)) == LENGTHS.size:
        question_bytes, body_bytes = LENGTHS.unpack(lengths)
        question = decode(questions.read(question_bytes))
        answer = encode(answer_of(question, questions.read(body_bytes), config))
        answers.write(LENGTH.pack(len(answer)) + answer)
        answers.flush()


def main() -> None:
    """Serve the gateway that has started this process; its settings are the only argument."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    config = msgspec.json.decode(sys.argv[1], type=RoutingConfig)
    serve(sys.stdin.buffer, sys.stdout.buffer, config)


if __name__ == "__main__":
    main()
