"""What a GPU costs by the hour. Prices are inputs: these are defaults of a known day.

Source: llm-d-planner 0.3.3 (PyPI, 2026), its table of on-demand prices. They differ by provider,
region and commitment by a factor of three; give your own.
"""

from collections.abc import Iterable, Mapping

from contract.hardware import HardwareError, find_gpu
from contract.options import SettingError

PRICES_SOURCE = "on-demand defaults of llm-d-planner 0.3.3, 2026"
USD_PER_HOUR: Mapping[str, float] = {
    "L4": 0.80,
    "A100-80": 3.50,
    "H100": 4.50,
    "H200": 5.75,
    "B200": 7.25,
    "MI300X": 3.75,
}
"""By the catalogue's names; a GPU without a price is not swept."""

HOURS_PER_MONTH = 730
"""365 x 24 / 12."""

USD_PER_HOUR_MAX = 10_000


def prices_of(given: Iterable[str]) -> dict[str, float]:
    """Return the defaults, changed by ``GPU=USD`` items (per GPU and hour).

    Raises SettingError for an unknown GPU or what is no price.
    """
    prices = dict(USD_PER_HOUR)
    for item in given:
        name, equals, text = item.partition("=")
        try:
            price = float(text) if equals else 0.0
            gpu = find_gpu(name)
        except HardwareError as error:
            raise SettingError(f"price {item!r}: {error}") from error
        except ValueError:
            price = 0.0
        if not 0 < price <= USD_PER_HOUR_MAX:
            raise SettingError(
                f"price {item!r} is no GPU=USD with USD per hour above 0 and at most "
                f"{USD_PER_HOUR_MAX}, as in H100=4.50"
            )
        prices[gpu.name] = price
    return prices
