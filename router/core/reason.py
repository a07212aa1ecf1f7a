"""Why a decision was what it was, and how an exchange ended: closed lists that label everything.

They replace log lines in the core: metrics, error bodies, explanations and simulator reports
carry the same words.
"""

from enum import Enum


class Reason(Enum):
    """Why this replica, or why none."""

    __hash__ = object.__hash__  # they are keys of counters; Enum's own is two calls

    WARM = "warm"  # no eligible replica holds more of the prompt
    SPREAD = "spread"  # a warmer replica was left aside because of its load
    COLD = "cold"  # no eligible replica holds any of the prompt
    NO_PROMPT = "no_prompt"  # nothing to match (utility route, unreadable or empty prompt)
    ONLY_ONE = "only_one"  # one eligible replica, so nothing was weighed
    QUEUED = "queued"  # every eligible replica is at its in-flight limit
    MODEL_NOT_FOUND = "model_not_found"
    NO_REPLICA = "no_replica"  # the fleet is empty
    ALL_EXCLUDED = "all_excluded"  # each has been tried, drains, is ejected or mismatches
    QUEUE_FULL = "queue_full"


class Ineligible(Enum):
    """Why one replica may not be chosen."""

    OTHER_MODEL = "other_model"
    DRAINING = "draining"
    EJECTED = "ejected"
    CONTRACT_MISMATCH = "contract_mismatch"
    ALREADY_TRIED = "already_tried"
    AT_LIMIT = "at_limit"
    NOT_REPORTING = "not_reporting"  # its reports stopped, those of others come
    BACKING_OFF = "backing_off"  # it answered 429 or 503, or 404 for this model; others did not


class Outcome(Enum):
    """How an exchange ended; every exchange ends in exactly one."""

    __hash__ = object.__hash__  # as above

    COMPLETE = "complete"  # the replica's whole answer was relayed, status below 400
    REPLICA_ERROR = "replica_error"  # the replica's own error was relayed unchanged
    REFUSED = "refused"  # the gateway answered with its own error
    BROKEN = "broken"  # the answer had begun and could not be finished; visibly cut
    CLIENT_LEFT = "client_left"  # the client closed before the end


class NotResumed(Enum):
    """Why the rest of a broken stream was not asked for of another replica."""

    OTHER_API = "other_api"  # neither chat nor completions
    NOT_A_STREAM = "not_a_stream"  # asked for in one piece, or compressed
    FIELD = "field"  # a field of the request that a continuation would not be exact under
    PROMPT = "prompt"  # several prompts, or token ids
    ATTACHMENT = "attachment"  # images and the like, which engines read each in their own way
    NO_LIMIT = "no_limit"  # a completion without max_tokens: the engine's own is not known
    UNREADABLE = "unreadable"  # the request, or an event of the answer
    CONTENT = "content"  # tool calls, reasoning, several choices: more than text
    TOO_LARGE = "too_large"  # the prompt with its answer, or all that is held
    RESUMED_OFTEN = "resumed_often"
    BUDGET = "budget"  # the fleet fails as a whole
    NOT_CONTINUED = "not_continued"  # no replica was left, or none in time
