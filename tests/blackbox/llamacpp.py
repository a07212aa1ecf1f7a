"""llama.cpp's own HTTP server, from the wheel of the extra `engines`, with `llama-server`'s flags.

    python -m tests.blackbox.llamacpp --model tiny.gguf --port 8001 --metrics

Only the flags that tests and docs use; SIGTERM ends it.
"""

import argparse
import signal
from collections.abc import Sequence

import xllamacpp

CONTEXT_TOKENS = 65_536


def main(argv: Sequence[str] | None = None) -> None:
    """Serve until a signal."""
    parser = argparse.ArgumentParser(prog="llama-server")
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("-a", "--alias")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("-c", "--ctx-size", type=int, default=CONTEXT_TOKENS)
    parser.add_argument("-np", "--parallel", type=int, default=4)
    parser.add_argument("--metrics", action="store_true")
    args = parser.parse_args(argv)

    params = xllamacpp.CommonParams()
    params.model.path = args.model
    params.model_alias = {args.alias} if args.alias else set()
    params.hostnames = [args.host]
    params.port = args.port
    params.n_ctx = args.ctx_size
    params.n_parallel = args.parallel
    params.endpoint_metrics = args.metrics
    params.cpuparams.n_threads = 1  # sums in one order, so that equal requests get equal answers
    params.warmup = False
    server = xllamacpp.Server(params)
    print("listening", server.listening_address, flush=True)  # noqa: T201  # the ready line
    signal.pause()


if __name__ == "__main__":
    main()
