"""Forms: their model is found, whatever else they hold, and in a time that grows with them only."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.config import RoutingConfig
from router.core.forms import form_fields
from router.core.request import route_request

NAMED = b"--b\r\nContent-Disposition: form-data; name=%b\r\n\r\n%b\r\n"


@pytest.mark.parametrize("name", [b'"model"', b"model", b'"model"; x=y', b"model; x=y"])
def test_the_model_is_found_however_its_line_is_written(name: bytes) -> None:
    assert form_fields(NAMED % (name, b"m") + b"--b--\r\n") == {"model": "m"}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"--b",
        b"--b\r\n",
        NAMED % (b'"model"', b"m"),  # without an end
        NAMED % (b'"models"', b"m") + b"--b--",
        NAMED % (b'"file"; filename="name=model"', b"m") + b"--b--",
        NAMED % (b'"model"', b"m" * 2000) + b"--b--",
        b"--" + b"b" * 71 + (NAMED % (b'"model"', b"m"))[3:] + b"--b--",
    ],
)
def test_what_has_no_such_field_has_none(body: bytes) -> None:
    assert form_fields(body) == {}


@given(st.binary(max_size=200).filter(lambda data: b"--b" not in data))
def test_a_file_before_it_hides_no_model(data: bytes) -> None:
    body = NAMED % (b'"file"', data) + NAMED % (b'"model"', b"m") + b"--b--\r\n"

    assert form_fields(body) == {"model": "m"}


def test_the_last_of_several_counts() -> None:
    body = NAMED % (b'"model"', b"one") + NAMED % (b'"model"', b"two") + b"--b--"

    assert form_fields(body) == {"model": "two"}


def test_a_streamed_transcription_is_a_stream() -> None:
    body = NAMED % (b'"model"', b"m") + NAMED % (b'"stream"', b"true") + b"--b--"

    request = route_request("/v1/audio/transcriptions", body, "r", RoutingConfig())

    assert (request.model, request.stream) == ("m", True)


@pytest.mark.parametrize(
    "piece", [b"--b\r\n", b"a: b\r\n", b"--b\r\n" + b"a: b\r\n" * 8, b'; name="', b"\r\n"]
)
def test_no_form_takes_long(piece: bytes) -> None:
    """A form that was looked through again from each of its marks took half a minute."""
    body = b"--b\r\ncontent-disposition: x" + piece * (256_000 // len(piece))
    began = time.process_time()

    form_fields(body)

    assert time.process_time() - began < 1.0
