"""What is known of one exchange when it has ended: the input of metrics and of the log line."""

from dataclasses import dataclass

from contract.failures import Failure
from contract.openai_api import Usage
from router.core.reason import Outcome, Reason


@dataclass(slots=True)
class ExchangeRecord:
    """One request from its last byte in to its last byte out; made once, at its end.

    Times are of the gateway's clock in microseconds, None where the request did not get so far.
    ``path`` is one of a closed list. ``model`` is the client's word: whoever makes a label of it
    must know the name first.
    """

    request_id: str
    path: str
    outcome: Outcome
    status: int  # sent to the client; 0 if it left before there was one
    received_us: int
    ended_us: int
    model: str | None = None
    policy: str = ""
    stream: bool = False
    reason: Reason | None = None  # None: refused before a decision
    replica_id: str | None = None  # of the last attempt
    failure: Failure | None = None  # the gateway's own word, also where an attempt was retried
    detail: str = ""  # the cause in words, without URLs or secrets
    prompt_tokens: int = 0  # the router's estimate
    matched_tokens: int = 0  # as believed at the decision
    usage: Usage | None = None  # as the engine says
    usage_unreadable: bool = False  # there was one, and it cannot be believed
    attempts: int = 0
    resumes: int = 0  # of these, for the rest of an answer that had begun
    decided_us: int | None = None
    sent_us: int | None = None
    first_byte_us: int | None = None  # of the answer's body; of a stream its first event
    body_bytes: int = 0
    answer_bytes: int = 0
    chunks: int = 0  # pieces in which a stream's body came
