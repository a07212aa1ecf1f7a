"""The settings of the data plane: every limit on bytes and on silence, on both of its sides."""

from dataclasses import dataclass
from enum import Enum

from contract.options import check_numbers, option
from router.gateway.answer_limits import read_model_timeouts

_OF_THE_PROTOCOL = frozenset(
    {"authorization", "connection", "content-length", "expect", "host", "transfer-encoding"}
    | {"x-request-id", "x-api-key", "origin", "content-encoding", "upgrade"}
)


class Failover(Enum):
    """What becomes of a stream whose replica is lost in the middle."""

    OFF = "off"
    RESUME = "resume"


@dataclass(frozen=True)
class GatewayConfig:
    """`[gateway]`. Times in seconds; a limit on time is one on silence where it says no other."""

    host: str = option(
        "0.0.0.0", "", "address on which clients are served, or unix:/path of a socket"
    )
    port: int = option(8080, "", "port on which clients are served; 0: any free one")
    backlog: int = option(4096, "connections", "connections that the kernel holds until accepted")
    connections_max: int = option(20_000, "connections", "client connections; more get a 503")
    header_bytes_max: int = option(32_768, "bytes", "head of a request, or of an answer; else 431")
    header_count_max: int = option(128, "headers", "headers of a request; else 431")
    max_body_bytes: int = option(
        64 * 1024 * 1024, "bytes", "body of a request, sized for several images; else 413"
    )
    buffered_bytes_max: int = option(
        1024 * 1024 * 1024, "bytes", "bodies held for all requests together; else 503"
    )
    pipelined_max: int = option(
        16, "requests", "requests that may wait on one connection before it is read no further"
    )
    write_buffer_bytes_max: int = option(
        262_144, "bytes", "unsent part of an answer from which its replica is read no further"
    )
    held_answer_bytes_max: int = option(
        65_536, "bytes", "refusal of a replica that is kept while another is tried"
    )
    answer_tail_bytes: int = option(
        16_384, "bytes", "end of an answer that is looked through for its usage"
    )
    index_answer_bytes_max: int = option(
        262_144,
        "bytes",
        "text of an answer, or its body if it is no stream, up to which `index_answers` holds it",
    )
    index_answers_bytes_max: int = option(
        67_108_864, "bytes", "what is held of all answers together for that"
    )
    client_idle_timeout_s: float = option(
        75.0, "s", "silence between the requests of one connection; it is then closed"
    )
    client_header_timeout_s: float = option(
        10.0, "s", "from a request's first byte to the end of its head; else 408"
    )
    client_body_timeout_s: float = option(
        30.0, "s", "silence within the body of a request; else 408"
    )
    client_write_timeout_s: float = option(
        60.0, "s", "how long a client may take nothing of an answer that waits for it"
    )
    linger_s: float = option(
        2.0, "s", "how long a refused body is read and thrown away, so that its answer arrives"
    )
    connect_timeout_s: float = option(2.0, "s", "opening a connection to a replica")
    first_byte_timeout_s: float = option(
        120.0, "s", "from a request's dispatch to the first byte of a streamed answer's body"
    )
    answer_timeout_s: float = option(
        600.0, "s", "from dispatch to the head of an answer that is not streamed: all its tokens"
    )
    between_bytes_timeout_s: float = option(
        60.0, "s", "silence within an answer; the engine is then taken for wedged"
    )
    total_timeout_s: float = option(
        0.0, "s", "from a request's last byte to the end of its answer, however it flows; 0: none"
    )
    model_timeouts: tuple[str, ...] = option(
        (),
        "",
        "limits of one model that differ: its name, then any of connect_timeout_s, "
        "first_byte_timeout_s, answer_timeout_s, between_bytes_timeout_s, total_timeout_s, as in "
        "'llama-405b first_byte_timeout_s=600 answer_timeout_s=1800'",
    )
    timeout_header: str = option(
        "x-warmroute-timeout-ms",
        "",
        "header in which a client gives limits of its own, in milliseconds: total_timeout_s, as in "
        "'9000', or any of those above by name, as in 'first_byte=2000, between_bytes=500, "
        "total=9000'; it can only shorten what is set here; empty: none is read",
    )
    asked_timeout_max_s: float = option(3600.0, "s", "what such a header may ask for at most")
    dns_ttl_s: float = option(
        5.0, "s", "age of a replica's address from which its name is looked up again"
    )
    replica_idle_s: float = option(
        4.0, "s", "age of an unused connection to a replica; uvicorn closes its own after 5"
    )
    replica_idle_max: int = option(
        512, "connections", "unused connections to one replica that are kept"
    )
    reuse_race_s: float = option(
        1.0, "s", "a reused connection lost this soon, without a byte, is replaced by a new one"
    )
    probe_path: str = option(
        "/health", "", "path that replicas are asked for; any answer below 500 shows that they live"
    )
    probe_interval_s: float = option(
        2.0, "s", "pause between two probes of a replica; 0: no probes"
    )
    probe_timeout_s: float = option(1.0, "s", "wait for the answer to a probe")
    failover: Failover = option(
        Failover.OFF,
        "",
        "go on with a broken stream on another replica: resume asks it for the rest, for which it "
        "must serve the same weights and, for chats, know continue_final_message (vLLM); off "
        "breaks the stream visibly, and holds neither prompt nor answer of a running stream",
    )
    resume_max: int = option(
        2, "times", "how often one stream is continued, each time on another replica"
    )
    resume_bytes_max: int = option(
        262_144,
        "bytes",
        "body of a request, and likewise text of its answer, up to which a stream can be "
        "continued; both are held while it runs",
    )
    sweep_s: float = option(0.25, "s", "how often limits on time are looked at, hence their grain")
    drain_s: float = option(30.0, "s", "how long running requests may go on after a SIGTERM")
    half_closed_within_s: float = option(
        0.1,
        "s",
        "a client that closes its half so soon after its request has only finished sending, where "
        "no probe can tell that it left (HTTP/1.0, or in the middle of a chunk)",
    )
    unsent_bytes_max: int = option(
        2 * 1024 * 1024 * 1024,
        "bytes",
        "unsent parts of all answers together; above it the slowest clients are cut",
    )
    body_in_turn_bytes_max: int = option(
        262_144,
        "bytes",
        "body that is read at once; a longer one is read by another process, so that the event "
        "loop never stands still for it",
    )
    body_items_in_turn_max: int = option(
        4_096,
        "objects",
        "objects and lists in a body that is read at once: to take apart many small ones takes "
        "longer than as many bytes of text; one with more is read by that process, too",
    )
    body_reading_timeout_s: float = option(
        5.0,
        "s",
        "wait for that process; the request then goes by load alone to a replica of its model",
    )
    forward_authorization: bool | None = option(
        None,
        "",
        "pass the client's Authorization, x-api-key and api-key on to the replica; none: unless "
        "clients need a key of this gateway",
    )
    upstream_authorization: str = option(
        "", "", "Authorization header that replicas get instead, 'Bearer ...'", secret=True
    )
    api_keys: tuple[str, ...] = option(
        (),
        "",
        "sha-256 of the keys that clients may use, 64 hexadecimal digits each, as "
        "`printf %s KEY | sha256sum` prints it; empty, and no file: no key is needed",
        secret=True,
    )
    api_keys_file: str = option(
        "", "", "file of such hashes, one a line, a name may follow; read again at a reload"
    )
    tls_cert_file: str = option(
        "", "", "PEM file of the certificate and its chain; clients are then served by TLS only"
    )
    tls_key_file: str = option("", "", "PEM file of its key, without a password")
    replica_ca_file: str = option(
        "",
        "",
        "PEM file of the CAs that replicas with an https:// URL may be signed by; "
        "empty: those of the system",
    )
    replica_tls_verify: bool = option(
        True, "", "check the certificates of replicas; false is for tests only"
    )
    cors_origins: tuple[str, ...] = option(
        (), "", "origins whose pages may call the API, '*' for all; empty: CORS is off"
    )
    cors_methods: tuple[str, ...] = option(("GET", "POST"), "", "methods that such pages may use")
    cors_headers: tuple[str, ...] = option(
        ("authorization", "content-type", "x-api-key", "x-request-id", "x-session-id"),
        "",
        "headers that such pages may send, '*' for all",
    )
    cors_max_age_s: int = option(600, "s", "how long a browser may remember what is allowed")
    session_header: str = option(
        "x-session-id", "", "header that names a client's session, for policies that keep them"
    )
    tenant_header: str = option(
        "",
        "",
        "header that names a tenant, whose prompts match its own only; empty: none. KV events "
        "know no tenants, so nothing matches on replicas that publish them: there let clients "
        "send `cache_salt`, which engines heed too",
    )
    explain_requests: bool = option(
        True,
        "",
        "answer `x-warmroute-explain: 1` with how the request was routed; it names every replica "
        "and tells its load: turn it off where clients may not know them",
    )
    explain_candidates_max: int = option(
        8, "replicas", "cheapest candidates in such an answer, and as many that could not be chosen"
    )
    explanation_bytes_max: int = option(
        4_096, "bytes", "such a header; what does not fit is left out, and counted in it"
    )
    proxied_paths: tuple[str, ...] = option(
        ("/v1/", "/tokenize", "/detokenize", "/rerank", "/score", "/pooling"),
        "",
        "paths, or beginnings that end in '/', which are sent to a replica; all others are 404",
    )

    def __post_init__(self) -> None:
        may_be_zero = {"port", "drain_s", "linger_s", "reuse_race_s", "replica_idle_max"}
        may_be_zero |= {"half_closed_within_s", "cors_max_age_s", "probe_interval_s"}
        may_be_zero |= {"total_timeout_s"}
        check_numbers(self, may_be_zero=may_be_zero)
        for name in ("session_header", "tenant_header"):
            if getattr(self, name).lower() in _OF_THE_PROTOCOL:
                raise ValueError(f"{name} is {getattr(self, name)!r}, which has another use")
        if self.timeout_header.lower() in _OF_THE_PROTOCOL:
            raise ValueError(f"timeout_header is {self.timeout_header!r}, which has another use")
        read_model_timeouts(self.model_timeouts)
        if self.port > 65_535:
            raise ValueError(f"port is {self.port}, must be from 0 to 65535")
        if self.host == "unix:":  # the kernel would choose a name that nobody knows
            raise ValueError("host is 'unix:', expected unix:/path of a socket")
        if bool(self.tls_cert_file) != bool(self.tls_key_file):
            raise ValueError("tls_cert_file and tls_key_file must be given together")
        if not self.upstream_authorization.isprintable():
            raise ValueError("upstream_authorization has characters that cannot be sent")
        for name, paths in (
            ("probe_path", (self.probe_path,)),
            ("proxied_paths", self.proxied_paths),
        ):
            for path in paths:
                if not path.startswith("/"):
                    raise ValueError(f"{name} has {path!r}, a path must begin with '/'")
