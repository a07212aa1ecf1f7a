"""The names that requests may use: the model, its aliases, and adapters that come and go."""

from dataclasses import dataclass
from typing import Any

import msgspec

from contract.blocks import BlockHash, root_hash
from contract.failures import Failure
from replicas.server.config import ReplicaConfig
from replicas.server.refusal import RefusedError


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter. Here it has no weights: it changes which blocks are whose."""

    name: str
    path: str


class ServedModels:
    """Resolves the model of a request and keeps the adapters."""

    def __init__(self, config: ReplicaConfig) -> None:
        self.model = config.model
        self._aliases = config.aliases
        self._adapters = {name: Adapter(name, name) for name in config.lora}
        self._adapters_max = config.max_loaded_loras

    @property
    def has_adapters(self) -> bool:
        """Whether an adapter is loaded."""
        return bool(self._adapters)

    def adapters(self) -> list[str]:
        """Return the names of the adapters that are loaded."""
        return list(self._adapters)

    def other_names(self) -> list[str]:
        """Return every name but the model's own."""
        return [*self._aliases, *self._adapters]

    def adapter_of(self, name: str | None) -> str | None:
        """Return the adapter that ``name`` asks for, None for the model itself.

        A request without a model is for the one that there is, as in vLLM. Raises RefusedError.
        """
        if name is None or name == self.model or name in self._aliases:
            return None
        if name in self._adapters:
            return name
        known = ", ".join([self.model, *self.other_names()])
        raise RefusedError(
            Failure.MODEL_NOT_FOUND, f"the model {name!r} does not exist; known: {known}", "model"
        )

    def root_of(self, adapter: str | None, cache_salt: str | None) -> BlockHash:
        """Return what the blocks of such requests are chained from.

        An adapter stands in the place of the model, because that is where a request names it: a
        gateway that knows nothing of adapters finds the same blocks.
        """
        return root_hash(adapter or self.model, cache_salt=cache_salt or "")

    def load(self, adapter: Adapter, in_place: bool) -> None:
        """Add an adapter, or take it for a new version of itself. Raises RefusedError."""
        name = adapter.name
        if not name or not adapter.path:
            message = "'lora_name' and 'lora_path' must both be given"
            raise RefusedError(Failure.INVALID_REQUEST, message)
        if name == self.model or name in self._aliases:
            message = f"{name!r} is the name of the model itself; choose another name"
            raise RefusedError(Failure.INVALID_REQUEST, message, "lora_name")
        if name in self._adapters and not in_place:
            message = (
                f"The lora adapter {name!r} has already been loaded. To load it in place, set "
                "'load_inplace' to true."
            )
            raise RefusedError(Failure.INVALID_REQUEST, message, "lora_name")
        if name not in self._adapters and len(self._adapters) >= self._adapters_max:
            message = (
                f"{len(self._adapters)} adapters are loaded, the most there may be; unload one"
            )
            raise RefusedError(Failure.INVALID_REQUEST, message, "lora_name")
        self._adapters[name] = adapter

    def unload(self, name: str) -> None:
        """Forget an adapter; its running requests go on. Raises RefusedError."""
        if name not in self._adapters:
            message = f"The lora adapter {name!r} cannot be found."
            raise RefusedError(Failure.MODEL_NOT_FOUND, message, "lora_name")
        del self._adapters[name]

    def cards(self, created: int, max_model_len: int) -> bytes:
        """Return the body of ``/v1/models``: the model, its aliases, then the adapters."""
        cards = [
            _card(name, self.model, None, created, max_model_len)
            for name in (self.model, *self._aliases)
        ]
        cards += [
            _card(each.name, each.path, self.model, created, None)
            for each in self._adapters.values()
        ]
        return msgspec.json.encode({"object": "list", "data": cards})


def _card(
    name: str, root: str, parent: str | None, created: int, max_model_len: int | None
) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "warmroute",
        "root": root,
        "parent": parent,
        "max_model_len": max_model_len,
    }
