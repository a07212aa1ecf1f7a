"""The limits on time of the settings, in microseconds."""

from dataclasses import replace

from router.core.config import micros
from router.gateway.answer_limits import PER_MODEL, AnswerLimits, read_model_timeouts
from router.gateway.config import GatewayConfig

NEVER_US = 2**62
_FEW = 32  # to look for so many one by one is quicker than to count

_PARTS = ", ".join(name.removesuffix("_timeout_s") for name in PER_MODEL)
_EXPECTED = (
    "expected a whole number of milliseconds, 1 or more, or several as in "
    f"'first_byte=2000, between_bytes=500' (of {_PARTS})"
)


class Limits:
    """The limits of one set of settings."""

    def __init__(self, config: GatewayConfig) -> None:
        self.idle_us = micros(config.client_idle_timeout_s)
        self.header_us = micros(config.client_header_timeout_s)
        self.body_us = micros(config.client_body_timeout_s)
        self.write_us = micros(config.client_write_timeout_s)
        self.linger_us = micros(config.linger_s)
        self.reuse_race_us = micros(config.reuse_race_s)
        self.half_closed_us = micros(config.half_closed_within_s)
        self._asked_max_us = micros(config.asked_timeout_max_s)
        self.general = AnswerLimits(*(_us(getattr(config, name)) for name in PER_MODEL))
        self.of_model = {
            model: replace(self.general, **{n.removesuffix("_s"): _us(s) for n, s in own.items()})
            for model, own in read_model_timeouts(config.model_timeouts).items()
        }

    def of(self, model: str | None) -> AnswerLimits:
        """Return what holds for requests that name ``model``."""
        return self.of_model.get(model, self.general) if model else self.general

    def asked(self, value: str, limits: AnswerLimits) -> AnswerLimits:
        """Return ``limits``, as far as a client's header shortens them. Raises ValueError.

        It has milliseconds of the whole, or of parts: ``first_byte=2000, between_bytes=500``.
        """
        shorter: dict[str, int] = {}
        for part in value.split(","):
            name, _, number = part.strip(" \t").rpartition("=")
            own = f"{name or 'total'}_timeout"
            if f"{own}_s" not in PER_MODEL or not _is_count(number):
                raise ValueError(_EXPECTED)
            asked_us = min(int(number) * 1000, self._asked_max_us)
            shorter[own] = min(asked_us, getattr(limits, own))
        return replace(limits, **shorter)


def is_read_in_turn(body: bytes, config: GatewayConfig) -> bool:
    """Say whether reading ``body`` stops the event loop for so short that nobody minds."""
    return len(body) <= config.body_in_turn_bytes_max and not has_many_items(body, config)


def has_many_items(body: bytes, config: GatewayConfig) -> bool:
    """Say whether ``body`` may have more objects and lists than are read in turn.

    Brackets within texts count as well: most bodies with so many have them for their structure.
    """
    items_max = config.body_items_in_turn_max
    if len(body) <= 2 * items_max:  # the smallest is {} or []
        return False
    few = min(_FEW, items_max // 2)
    if _has_less(body, b"{", few) and _has_less(body, b"[", few):  # as nearly always
        return False
    return body.count(b"{") + body.count(b"[") > items_max


def _has_less(body: bytes, bracket: bytes, num: int) -> bool:
    """Say whether there are less than ``num``; where they are rare, ten times as fast as count."""
    at = -1
    for _ in range(num):
        at = body.find(bracket, at + 1)
        if at < 0:
            return True
    return False


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 12 and int(text) > 0


def _us(seconds: float) -> int:
    """Return a limit; 0 stands for none."""
    return micros(seconds) if seconds else NEVER_US
