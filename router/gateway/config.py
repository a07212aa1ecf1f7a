"""The settings of the data plane: every limit on bytes and on silence, on both of its sides."""

from dataclasses import dataclass

from contract.options import option

_OF_THE_PROTOCOL = frozenset(
    {"authorization", "connection", "content-length", "expect", "host", "transfer-encoding"}
    | {"x-request-id"}
)


@dataclass(frozen=True)
class GatewayConfig:
    """`[gateway]`. Times in seconds; a limit on time is a limit on silence, never on a whole."""

    host: str = option("0.0.0.0", "", "address on which clients are served")
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
    sweep_s: float = option(0.25, "s", "how often limits on time are looked at, hence their grain")
    drain_s: float = option(30.0, "s", "how long running requests may go on after a SIGTERM")
    forward_authorization: bool = option(
        True, "", "pass the client's Authorization header on to the replica"
    )
    session_header: str = option(
        "x-session-id", "", "header that names a client's session, for policies that keep them"
    )
    proxied_paths: tuple[str, ...] = option(
        ("/v1/", "/tokenize", "/detokenize", "/rerank", "/score", "/pooling"),
        "",
        "paths, or beginnings that end in '/', which are sent to a replica; all others are 404",
    )

    def __post_init__(self) -> None:
        may_be_zero = {"port", "drain_s", "linger_s", "reuse_race_s", "replica_idle_max"}
        for name, value in vars(self).items():
            if isinstance(value, bool | str | tuple):
                continue
            if value < 0 or (value == 0 and name not in may_be_zero):
                least = "0 or more" if name in may_be_zero else "above 0"
                raise ValueError(f"{name} is {value}, must be {least}")
        if self.session_header.lower() in _OF_THE_PROTOCOL:
            raise ValueError(f"session_header is {self.session_header!r}, which has another use")
        if self.port > 65_535:
            raise ValueError(f"port is {self.port}, must be from 0 to 65535")
        for path in self.proxied_paths:
            if not path.startswith("/"):
                raise ValueError(f"proxied_paths has {path!r}, a path must begin with '/'")
