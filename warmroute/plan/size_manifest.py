"""The answer of `plan size` as something to start: docker-compose or Kubernetes, vLLM behind it.

Sketches: storage, secrets, node selection and TLS are yours. The fleet is the one that may lose a
replica. YAML is written as text, in JSON's quoting, which YAML reads.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import PurePath

from contract.hardware import Precision
from simulator.sizing.plan import SizePlan
from simulator.sizing.settings import SizeSettings

REDIS_URL = "redis://redis:6379/0"
REDIS_IMAGE = "redis:7.4.5-bookworm"
VLLM_IMAGE = "vllm/vllm-openai:latest"
WARMROUTE_IMAGE = "warmroute:local"
ENGINE_PORT = 8000
GATEWAY_PORT = 8080


def compose_yaml(plan: SizePlan, settings: SizeSettings) -> str:
    """Return a docker-compose.yml for one machine with all the GPUs."""
    gpus, count = plan.tensor_parallel, plan.spare.replicas
    lines = [
        f"# {_about(plan)}",
        f"# For one machine with {gpus * count} GPUs; with fewer, start a part on each.",
        "name: warmroute-fleet",
        "services:",
        "  redis:",
        f"    image: {REDIS_IMAGE}",
        '    command: [redis-server, --save, "", --appendonly, "no"]',
        "  gateway:",
        f"    image: {WARMROUTE_IMAGE}",
        f"    command: {_flow(gateway_command(settings))}",
        f'    ports: ["127.0.0.1:{GATEWAY_PORT}:{GATEWAY_PORT}"]',
        "    depends_on: [redis]",
        "  agent:",
        f"    image: {WARMROUTE_IMAGE}",
        f"    command: {_flow(agent_command([f'engine-{n}' for n in range(count)]))}",
        "    depends_on: [redis]",
    ]
    for index in range(count):
        devices = [str(index * gpus + n) for n in range(gpus)]
        lines += [
            f"  engine-{index}:",
            f"    image: {VLLM_IMAGE}",
            f"    command: {_flow(engine_command(plan, settings))}",
            "    ipc: host",
            "    deploy:",
            "      resources:",
            "        reservations:",
            "          devices:",
            "            - driver: nvidia",
            f"              device_ids: {_flow(devices)}",
            "              capabilities: [gpu]",
        ]
    return "\n".join(lines)


def kubernetes_yaml(plan: SizePlan, settings: SizeSettings) -> str:
    """Return Deployments and Services: engines each with an agent, the gateway, Redis."""
    engine = [
        "        - name: engine",
        f"          image: {VLLM_IMAGE}",
        f"          args: {_flow(engine_command(plan, settings))}",
        f"          ports: [{{containerPort: {ENGINE_PORT}}}]",
        f"          resources: {{limits: {{nvidia.com/gpu: {plan.tensor_parallel}}}}}",
        f"          readinessProbe: {{httpGet: {{path: /health, port: {ENGINE_PORT}}}}}",
        "        - name: agent",
        f"          image: {WARMROUTE_IMAGE}",
        "          env:",
        "            - name: POD_IP",
        "              valueFrom: {fieldRef: {fieldPath: status.podIP}}",
        f"          args: {_flow(_pod_agent_command())}",
    ]
    gateway = [
        "        - name: gateway",
        f"          image: {WARMROUTE_IMAGE}",
        f"          args: {_flow(gateway_command(settings))}",
        f"          ports: [{{containerPort: {GATEWAY_PORT}}}]",
        f"          readinessProbe: {{httpGet: {{path: /ready, port: {GATEWAY_PORT}}}}}",
    ]
    redis = [
        "        - name: redis",
        f"          image: {REDIS_IMAGE}",
        '          args: [redis-server, --save, "", --appendonly, "no"]',
        "          ports: [{containerPort: 6379}]",
    ]
    documents = (
        _deployment("engine", plan.spare.replicas, engine),
        _deployment("gateway", 2, gateway),
        _service("gateway", GATEWAY_PORT),
        _deployment("redis", 1, redis),
        _service("redis", 6379),
    )
    texts = ("\n".join(document) for document in documents)
    return f"# {_about(plan)}\n" + "\n---\n".join(texts)


def gateway_command(settings: SizeSettings) -> list[str]:
    """Return the gateway's arguments."""
    return ["router", f"--redis-url={REDIS_URL}", f"--policy={settings.policy}"]


def agent_command(hosts: Sequence[str]) -> list[str]:
    """Return the arguments of one agent for engines on ``hosts``."""
    urls = [f"--url=http://{host}:{ENGINE_PORT}" for host in hosts]
    return ["agent", "--engine=vllm", *urls, f"--redis-url={REDIS_URL}"]


def engine_command(plan: SizePlan, settings: SizeSettings) -> list[str]:
    """Return vLLM's arguments, as simulated."""
    flags = [
        f"--model={_served(settings.model)}",
        f"--tensor-parallel-size={plan.tensor_parallel}",
        f"--gpu-memory-utilization={settings.memory_share:g}",
        "--enable-prompt-tokens-details",
    ]
    if settings.precision is Precision.FP8:
        flags.append("--quantization=fp8")
    if settings.kv_precision is Precision.FP8:
        flags.append("--kv-cache-dtype=fp8")
    return flags


def _pod_agent_command() -> list[str]:
    advertised = f"--advertise-url=http://$(POD_IP):{ENGINE_PORT}"
    return [*agent_command(["127.0.0.1"]), advertised]


def _served(model: str) -> str:
    """A catalogue's name has no organisation, and a path is this machine's: both are a hint."""
    path = PurePath(model)
    return path.parent.name if path.name == "config.json" else model


def _about(plan: SizePlan) -> str:
    return (
        f"{plan.spare.replicas} replicas of {plan.tensor_parallel} x {plan.gpu}: "
        f"{plan.chosen.replicas} for the load, the rest to lose one at the peak."
    )


def _deployment(name: str, replicas: int, containers: Sequence[str]) -> Iterator[str]:
    yield "apiVersion: apps/v1"
    yield "kind: Deployment"
    yield f"metadata: {{name: {name}, labels: {{app: {name}}}}}"
    yield "spec:"
    yield f"  replicas: {replicas}"
    yield f"  selector: {{matchLabels: {{app: {name}}}}}"
    yield "  template:"
    yield f"    metadata: {{labels: {{app: {name}}}}}"
    yield "    spec:"
    yield "      containers:"
    yield from containers


def _service(name: str, port: int) -> Iterator[str]:
    yield "apiVersion: v1"
    yield "kind: Service"
    yield f"metadata: {{name: {name}}}"
    yield f"spec: {{selector: {{app: {name}}}, ports: [{{port: {port}, targetPort: {port}}}]}}"


def _flow(items: Sequence[str]) -> str:
    return json.dumps(list(items))
