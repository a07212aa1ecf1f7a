"""``/v1/load_lora_adapter`` and ``/v1/unload_lora_adapter``, in vLLM's words."""

from collections.abc import Callable

from aiohttp import web

from contract.openai_api import decode_load_adapter, decode_unload_adapter
from replicas.server.gate import Gate
from replicas.server.openai_requests import decoded
from replicas.server.served_models import Adapter, ServedModels


class AdapterRoutes:
    """Loads and unloads adapters; ``on_change`` is called after each."""

    def __init__(self, models: ServedModels, gate: Gate) -> None:
        self.on_change: Callable[[], None] = lambda: None
        self._models = models
        self._gate = gate

    def routes(self) -> list[web.RouteDef]:
        """Return what this class answers."""
        return [
            web.post("/v1/load_lora_adapter", self._load),
            web.post("/v1/unload_lora_adapter", self._unload),
        ]

    async def _load(self, request: web.Request) -> web.Response:
        asked = decoded(decode_load_adapter, await self._gate.read_body(request))
        self._models.load(Adapter(asked.lora_name, asked.lora_path), bool(asked.load_inplace))
        self.on_change()
        return web.Response(text=f"Success: LoRA adapter '{asked.lora_name}' added successfully.")

    async def _unload(self, request: web.Request) -> web.Response:
        asked = decoded(decode_unload_adapter, await self._gate.read_body(request))
        self._models.unload(asked.lora_name)
        self.on_change()
        return web.Response(text=f"Success: LoRA adapter '{asked.lora_name}' removed successfully.")
