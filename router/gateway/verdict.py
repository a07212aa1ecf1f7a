"""What an ended answer, or a decision for nobody, means for the client, the replica, the books."""

from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import urlsplit, urlunsplit

from contract.failures import Failure, Health, health_of_status
from contract.openai_api import Usage
from router.core.health import AttemptOutcome
from router.core.reason import Outcome, Reason
from router.core.request import CHAT_PATH, COMPLETION_PATH
from router.gateway.answer_watch import AnswerWatch

ENGINE_PATHS = frozenset({CHAT_PATH, COMPLETION_PATH})
"""That every engine has: a 404 there is about the model, not about the path."""


# To look a member up is a call of its own (until Python 3.12).
_COMPLETE, _OK = Outcome.COMPLETE, AttemptOutcome.OK

MODEL_SHOWN_MAX = 256
"""How much of a name that a client has made up is told back to it."""


@dataclass(slots=True)
class Verdict:
    """On one whole answer of a replica."""

    outcome: Outcome
    attempt: AttemptOutcome
    usage: Usage | None = None
    usage_unreadable: bool = False
    detail: str = ""


def judge_answer(status: int, watch: AnswerWatch | None) -> Verdict:
    """Judge an answer that has been relayed to its end."""
    if status >= 400:
        return Verdict(Outcome.REPLICA_ERROR, attempt_of_status(status))
    if watch is None:
        return Verdict(_COMPLETE, _OK)
    error_status = watch.error_status()
    if error_status is not None:
        attempt = attempt_of_status(error_status)
        return Verdict(Outcome.REPLICA_ERROR, attempt, detail=f"an error under status {status}")
    verdict = Verdict(_COMPLETE, _OK)
    try:
        verdict.usage = watch.usage()
    except ValueError:
        verdict.usage_unreadable = True
    return verdict


def attempt_of_status(status: int) -> AttemptOutcome:
    """Return what a status says of the replica that sent it."""
    health = health_of_status(status)
    if health is Health.BACK_PRESSURE:
        return AttemptOutcome.BACK_PRESSURE
    if health is Health.BAD:
        return AttemptOutcome.SERVER_ERROR
    return AttemptOutcome.CLIENT_ERROR if status >= 400 else AttemptOutcome.OK


@dataclass(frozen=True, slots=True)
class Refusal:
    """The gateway's own error: what to answer."""

    failure: Failure
    message: str
    param: str | None = None


def last_resort(refusal: Refusal) -> Refusal:
    """Return the answer where a replica that was known to be out could not be reached, either."""
    if refusal.failure not in (Failure.CONNECT_FAILED, Failure.CONNECT_TIMEOUT):
        return refusal
    message = f"no replica can take a request now; tried nevertheless, {refusal.message}"
    return Refusal(Failure.NO_REPLICA, message)


def refusal_of(reason: Reason, model: str | None) -> Refusal:
    """Return the answer to a request for which there is no replica."""
    if model is not None and len(model) > MODEL_SHOWN_MAX:
        model = model[:MODEL_SHOWN_MAX] + "..."
    named = "" if model is None else f" for model {model!r}"
    if reason is Reason.MODEL_NOT_FOUND:
        message = f"the model {model!r} does not exist; GET /v1/models lists those that do"
        return Refusal(Failure.MODEL_NOT_FOUND, message, "model")
    if reason is Reason.QUEUE_FULL:
        message = f"every replica{named} is busy and the queue is full; try again later"
        return Refusal(Failure.OVERLOADED, message)
    if reason is Reason.ALL_EXCLUDED:
        return Refusal(Failure.NO_REPLICA, f"no replica{named} can take a request now")
    return Refusal(Failure.NO_REPLICA, f"no replica{named} is known yet")


_OBJECTIONS = {
    Failure.INVALID_API_KEY: "a key of this gateway is needed: 'Authorization: Bearer KEY', or "
    "'x-api-key: KEY'",
    Failure.LOOP_DETECTED: "this request has come through this gateway before: one of its replicas "
    "is the gateway itself, or leads back to it",
    Failure.EXPECTATION_FAILED: "the only expectation that can be met is 100-continue",
    Failure.UPGRADE_REFUSED: "there are no WebSockets here; ask with POST, and for a stream with "
    '"stream": true',
}


def refusal_of_head(objection: Failure) -> Refusal:
    """Return the answer to a request whose headers forbid to serve it."""
    return Refusal(objection, _OBJECTIONS[objection])


@lru_cache(1024)
def public_name(replica_id: str) -> str:
    """Return a replica's id as strangers may see it: one that is a url loses its credentials."""
    try:
        parts = urlsplit(replica_id)
    except ValueError:
        return "replica"
    if "@" not in parts.netloc:
        return replica_id
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query=""))


@lru_cache(1024)
def replica_line(replica_id: str) -> bytes:
    """Return the header that names the replica."""
    name = public_name(replica_id).encode("ascii", "backslashreplace")
    return b"x-warmroute-replica: %b\r\n" % bytes(c for c in name if 0x20 <= c < 0x7F)
