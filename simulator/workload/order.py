"""The order in which a workload's requests stand."""

from collections.abc import Iterable
from dataclasses import replace

from simulator.request import SimRequest


def by_arrival(requests: Iterable[SimRequest]) -> list[SimRequest]:
    """Return requests in the order of their arrival, those of one instant as they stood.

    One that waits for another has no arrival of its own: it stays behind the one that began it.
    """
    chains: list[list[SimRequest]] = []
    chain_of: dict[str, list[SimRequest]] = {}
    for request in requests:
        if request.after is None:
            chain: list[SimRequest] = []
            chains.append(chain)
        else:
            chain = chain_of[request.after]
        chain.append(request)
        chain_of[request.request_id] = chain
    chains.sort(key=lambda chain: chain[0].arrival_us)
    return [request for chain in chains for request in chain]


def from_zero(requests: Iterable[SimRequest]) -> tuple[SimRequest, ...]:
    """Return requests in the order of their arrival, the first of which is at 0."""
    ordered = by_arrival(requests)
    start_us = ordered[0].arrival_us if ordered else 0
    return tuple(delayed(request, -start_us) for request in ordered)


def delayed(request: SimRequest, by_us: int) -> SimRequest:
    """Return the request, arriving ``by_us`` later, unless it waits for another."""
    if request.after is not None or by_us == 0:
        return request
    return replace(request, arrival_us=request.arrival_us + by_us)
