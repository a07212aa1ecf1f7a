"""The limits on time of the settings, in microseconds."""

from dataclasses import replace

from router.core.config import micros
from router.gateway.answer_limits import PER_MODEL, AnswerLimits, read_model_timeouts
from router.gateway.config import GatewayConfig

NEVER_US = 2**62


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

    def asked_us(self, value: str) -> int:
        """Return what a client's header asks for, within its bound. Raises ValueError."""
        if not value.isascii() or not value.isdigit() or len(value) > 12 or not int(value):
            raise ValueError("expected a whole number of milliseconds, 1 or more")
        return min(int(value) * 1000, self._asked_max_us)


def _us(seconds: float) -> int:
    """Return a limit; 0 stands for none."""
    return micros(seconds) if seconds else NEVER_US
