"""Proves docker-compose.yml step by step on the Docker engine that answers.

    python3 deploy/compose-test/prove.py [--without SERVICE]

Each step prints one line with what was found. The first that fails prints the services' logs, too,
and is the last; either way all is taken down again. The project has a name of its own, but the
published ports must be free, and the image `warmroute:local` must have been built.
"""
# ruff: noqa: S607, T201  # it prints, and takes the docker that is on the PATH

import argparse
import json
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PROJECT = "warmroute-compose-test"
IMAGE = "warmroute:local"
GATEWAYS = {"gateway-1": 8080, "gateway-2": 8090}
PROMETHEUS_PORT = 9090
GRAFANA_PORT = 3000
REPLICAS = 3
MODEL = "llama-3.1-8b"
USER = "10001"
GRACE_S = 40.0

COMMAND_TIMEOUT_S = 240.0
STATE_TIMEOUT_S = 60.0
ANSWER_TIMEOUT_S = 30.0
WORKERS = 8
ANSWERS_BEFORE, ANSWERS_AFTER = 60, 300
LONG_ANSWER_TOKENS = 3_000

SECRET = re.compile(r"(?i)(password|passwd|secret|api_?key|access_?key|token)\s*=")


class NotProvedError(Exception):
    """What was found instead of what was expected."""


def expect(is_so: bool, otherwise: str) -> None:
    if not is_so:
        raise NotProvedError(otherwise)


def docker(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run one docker command. Raises NotProvedError with its errors, or at the time limit."""
    try:
        done = subprocess.run(
            ["docker", *words], cwd=ROOT, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S
        )
    except subprocess.TimeoutExpired as error:
        raise NotProvedError(
            f"docker {' '.join(words)}: no end after {COMMAND_TIMEOUT_S:g} s"
        ) from error
    if check and done.returncode:
        tail = (done.stderr or done.stdout).strip()[-2000:]
        raise NotProvedError(f"docker {' '.join(words)}: status {done.returncode}: {tail}")
    return done


def compose(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    of = ("compose", "--ansi=never", f"--project-name={PROJECT}", "--profile=load")
    return docker(*of, *words, check=check)


def containers(service: str) -> list[str]:
    return compose("ps", "--all", "--quiet", service).stdout.split()


def inspect(container: str) -> dict[str, Any]:
    found: list[dict[str, Any]] = json.loads(docker("inspect", container).stdout)
    return found[0]


def replica_id(container: str) -> str:
    """Return the name under which a replica's container reports."""
    return f"{inspect(container)['Config']['Hostname']}-8000"


@dataclass(frozen=True)
class Answer:
    status: int
    replica_id: str
    body: bytes


def ask(port: int, content: str, *, tokens: int = 16, stream: bool = False) -> Answer:
    """Send one chat request to a gateway and read the whole answer."""
    with sent(port, content, tokens, stream) as response:
        return Answer(
            response.status, response.getheader("x-warmroute-replica", "-"), response.read()
        )


@contextmanager
def sent(port: int, content: str, tokens: int, stream: bool) -> Iterator[Any]:
    """Send one chat request; yield the response with its head read and its body not."""
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": content}],
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": stream,
    }
    connection = HTTPConnection("127.0.0.1", port, timeout=ANSWER_TIMEOUT_S)
    try:
        connection.request(
            "POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"}
        )
        yield connection.getresponse()
    finally:
        connection.close()


def get_json(port: int, path: str) -> Any:
    connection = HTTPConnection("127.0.0.1", port, timeout=ANSWER_TIMEOUT_S)
    try:
        connection.request("GET", path)
        return json.loads(connection.getresponse().read())
    finally:
        connection.close()


def until(condition: Callable[[], bool], what: str) -> float:
    """Wait for a state of other processes; return how long it took in seconds."""
    started = time.monotonic()
    while not condition():
        if time.monotonic() - started > STATE_TIMEOUT_S:
            raise NotProvedError(f"{what}: not within {STATE_TIMEOUT_S:g} s")
        time.sleep(0.2)
    return time.monotonic() - started


@dataclass
class Traffic:
    """Requests without end through both gateways, each with a prompt of its own."""

    answers: list[Answer] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    _is_over: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def running(self) -> Iterator["Traffic"]:
        with ThreadPoolExecutor(WORKERS) as pool:
            try:
                for worker in range(WORKERS):
                    pool.submit(self._send, worker)
                yield self
            finally:
                self._is_over.set()

    def _send(self, worker: int) -> None:
        ports = list(GATEWAYS.values())
        number = 0
        while not self._is_over.is_set():
            number += 1
            try:
                answer = ask(
                    ports[number % 2], f"worker {worker} request {number} " + "word " * 200
                )
            except (OSError, HTTPException) as error:
                self.failures.append(repr(error))
                continue
            self.answers.append(answer)
            if answer.status != 200:
                self.failures.append(f"status {answer.status}: {answer.body[:200]!r}")

    def wait_for(self, count: int) -> None:
        """Wait until ``count`` more answers have come."""
        wanted = len(self.answers) + count
        until(lambda: len(self.answers) >= wanted, f"{count} more answers")


class Proof:
    """The steps in their order; each returns what was found."""

    def __init__(self, without: list[str]) -> None:
        everything = compose("config", "--services").stdout.split()
        self.services = [name for name in everything if name not in (*without, "load")]
        self.victim = ""

    def the_file_is_valid(self) -> str:
        compose("config", "--quiet")
        return f"docker compose config, with {', '.join(sorted(self.services))} to be started"

    def the_image_is_safe(self) -> str:
        user = inspect(IMAGE)["Config"]["User"]
        expect(user.split(":")[0] == USER, f"user of the image is {user!r}, expected {USER}")
        history = docker("history", "--no-trunc", "--format", "{{.CreatedBy}}", IMAGE).stdout
        found = SECRET.search("\n".join([history, *inspect(IMAGE)["Config"]["Env"]]))
        expect(found is None, f"the image's history or environment has {found and found.group()!r}")
        run = ("run", "--rm", "--network=none", "--read-only", "--cap-drop=ALL")
        write = "open('/opt/warmroute/written', 'w')"
        tried = docker(*run, "--entrypoint=python", IMAGE, "-c", write, check=False)
        expect("Read-only file system" in tried.stderr, f"a write gave {tried.stderr!r}")
        version = docker(*run, IMAGE, "version").stdout.strip()
        layers = len(history.splitlines())
        return f"{version}, user {user}, no secret in {layers} layers, a write is refused"

    def everything_starts(self) -> str:
        started = time.monotonic()
        compose("up", "--detach", "--no-build", "--wait", *self.services)
        took_s = time.monotonic() - started
        expect(len(containers("replica")) == REPLICAS, f"there are not {REPLICAS} replicas")
        return (
            f"{len(compose('ps', '--quiet').stdout.split())} containers healthy in {took_s:.0f} s"
        )

    def the_containers_have_no_rights(self) -> str:
        running = compose("ps", "--quiet").stdout.split()
        users = Counter[str]()
        for container in running:
            host, name = inspect(container)["HostConfig"], inspect(container)["Name"]
            expect(host["ReadonlyRootfs"], f"{name} can write its root file system")
            text = docker("exec", container, "cat", "/proc/1/status").stdout
            status = dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)
            uid = status["Uid"].split()[0]
            expect(uid != "0", f"{name} runs as root")
            expect(int(status["CapBnd"], 16) == 0, f"{name} may get {status['CapBnd']}")
            expect(status["NoNewPrivs"] == "1", f"{name} may gain privileges")
            users[uid] += 1
        counts = ", ".join(f"{count} as {uid}" for uid, count in users.items())
        return f"{len(running)} with a read-only root and no capability: {counts}"

    def each_gateway_answers(self) -> str:
        for name, port in GATEWAYS.items():
            whole = ask(port, f"hello {name}")
            expect(whole.status == 200, f"{name}: {whole}")
            tokens = json.loads(whole.body)["usage"]["completion_tokens"]
            expect(tokens == 16, f"{name}: {tokens} tokens, expected 16")
            streamed = ask(port, f"hello {name}", stream=True)
            expect(streamed.status == 200, f"{name}: {streamed}")
            events = [line for line in streamed.body.split(b"\n\n") if line]
            expect(events[-1] == b"data: [DONE]", f"{name}: ends with {events[-1]!r}")
        return f"{' and '.join(GATEWAYS)}, chat, whole and streamed"

    def prometheus_scrapes_all(self) -> str:
        expected = {"warmroute-gateway": len(GATEWAYS), "warmroute-replica": REPLICAS}
        seen: Counter[str] = Counter()

        def all_are_up() -> bool:
            targets = get_json(PROMETHEUS_PORT, "/api/v1/targets")["data"]["activeTargets"]
            seen.clear()
            seen.update(target["scrapePool"] for target in targets if target["health"] == "up")
            return len(targets) == seen.total() and dict(seen) == expected

        took_s = until(all_are_up, f"targets {expected} up, last seen {seen}")
        groups = get_json(PROMETHEUS_PORT, "/api/v1/rules")["data"]["groups"]
        rules = [rule for group in groups for rule in group["rules"]]
        broken = [rule["name"] for rule in rules if rule["health"] == "err"]
        expect(not broken, f"rules that fail: {broken}")
        return f"{seen.total()} targets up after {took_s:.0f} s, {len(rules)} rules"

    def grafana_has_the_dashboards(self) -> str:
        if "grafana" not in self.services:
            return "left out, with its image"
        files = (ROOT / "deploy/grafana").glob("*.json")
        expected = {json.loads(file.read_text())["title"] for file in files}
        found = {item["title"] for item in get_json(GRAFANA_PORT, "/api/search?type=dash-db")}
        expect(found == expected, f"dashboards {found}, expected {expected}")
        return f"an anonymous viewer sees {', '.join(sorted(found))}"

    def a_killed_replica_costs_no_answer(self) -> str:
        self.victim = containers("replica")[0]
        victim_id = replica_id(self.victim)
        with Traffic().running() as traffic:
            traffic.wait_for(ANSWERS_BEFORE)
            served = sum(answer.replica_id == victim_id for answer in traffic.answers)
            docker("kill", "--signal=KILL", self.victim)
            traffic.wait_for(ANSWERS_AFTER)
        expect(served > 0, f"{victim_id} had answered nothing before it was killed")
        expect(not traffic.failures, f"{len(traffic.failures)} failed: {traffic.failures[:3]}")
        last = {answer.replica_id for answer in traffic.answers[-50:]}
        expect(len(last) == REPLICAS - 1, f"the last answers came from {last}")
        return (
            f"{victim_id} after {served} answers; all {len(traffic.answers)} requests "
            f"had status 200, the last from {len(last)} replicas"
        )

    def a_replica_that_returns_is_used(self) -> str:
        victim_id = replica_id(self.victim)
        docker("start", self.victim)
        started = time.monotonic()
        with Traffic().running() as traffic:
            until(
                lambda: any(answer.replica_id == victim_id for answer in traffic.answers),
                f"an answer of {victim_id}",
            )
            took_s = time.monotonic() - started
        expect(not traffic.failures, f"{len(traffic.failures)} failed: {traffic.failures[:3]}")
        return f"{victim_id} answers {took_s:.1f} s after its start"

    def the_load_goes_through(self) -> str:
        done = compose("run", "--rm", "--no-TTY", "load", check=False)
        expect(done.returncode == 0, f"status {done.returncode}: {done.stdout}{done.stderr}")
        names, _, *rows = (re.split(r"\s{2,}", line) for line in done.stdout.strip().splitlines())
        total = dict(zip(names, rows[-1], strict=True))
        shown = ("requests", "errors", "hit predicted", "hit actual", "TTFT p50", "TTFT p99")
        return ", ".join(f"{name} {total[name]}" for name in shown)

    def a_gateway_stops_in_order(self) -> str:
        (container,) = containers("gateway-1")
        with sent(GATEWAYS["gateway-1"], "a long story", LONG_ANSWER_TOKENS, True) as response:
            first = response.read1(1_000)
            with ThreadPoolExecutor(1) as pool:
                started = time.monotonic()
                stopping = pool.submit(compose, "stop", "gateway-1")
                rest = response.read()
                stopping.result()
                took_s = time.monotonic() - started
        events = (first + rest).count(b"data: ")
        expect(rest.endswith(b"data: [DONE]\n\n"), f"the stream was cut after {events} events")
        code = inspect(container)["State"]["ExitCode"]
        expect(code == 0, f"exit status {code}, expected 0")
        expect(took_s < GRACE_S, f"took {took_s:.1f} s, of {GRACE_S:g} s")
        return f"exit status 0 after {took_s:.1f} s, in which a stream got all its {events} events"

    def a_replica_stops_in_order(self) -> str:
        container = containers("replica")[1]
        with Traffic().running() as traffic:
            traffic.wait_for(ANSWERS_BEFORE)
            docker("stop", f"--time={GRACE_S:.0f}", container)
            traffic.wait_for(ANSWERS_BEFORE)
        expect(not traffic.failures, f"{len(traffic.failures)} failed: {traffic.failures[:3]}")
        code = inspect(container)["State"]["ExitCode"]
        expect(code == 0, f"exit status {code}, expected 0")
        return f"exit status 0; all {len(traffic.answers)} requests meanwhile had status 200"

    def nothing_is_left(self) -> str:
        take_down()
        mine = f"--filter=label=com.docker.compose.project={PROJECT}"
        left = {
            kind: docker(*words, "--quiet", mine).stdout.split()
            for kind, words in {
                "containers": ("ps", "--all"),
                "networks": ("network", "ls"),
                "volumes": ("volume", "ls"),
            }.items()
        }
        expect(not any(left.values()), f"left: {left}")
        return "no container, network or volume after docker compose down --volumes"


def take_down() -> None:
    compose("down", "--volumes", "--remove-orphans", "--timeout=10")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--without", action="append", default=[], metavar="SERVICE")
    proof = Proof(parser.parse_args().without)
    steps = [
        *(proof.the_file_is_valid, proof.the_image_is_safe, proof.everything_starts),
        *(proof.the_containers_have_no_rights, proof.each_gateway_answers),
        *(proof.prometheus_scrapes_all, proof.grafana_has_the_dashboards),
        proof.a_killed_replica_costs_no_answer,
        *(proof.a_replica_that_returns_is_used, proof.the_load_goes_through),
        *(proof.a_replica_stops_in_order, proof.a_gateway_stops_in_order, proof.nothing_is_left),
    ]
    take_down()  # of a run that was killed
    for step in steps:
        name = step.__name__.replace("_", " ")
        try:
            print(f"ok    {name}: {step()}", flush=True)
        except (NotProvedError, OSError, HTTPException, ValueError, KeyError) as error:
            print(f"FAIL  {name}: {type(error).__name__}: {error}", flush=True)
            print(compose("ps", "--all", check=False).stdout)
            print(compose("logs", "--tail=40", check=False).stdout)
            take_down()
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
