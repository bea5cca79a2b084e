"""Validates the decisions of plugins before a broker has to store them."""

from __future__ import annotations

import json
from datetime import datetime
from typing import NoReturn

from chancy.attempt.failure import Failure
from chancy.attempt.settlement import Settlement
from chancy.containment import refuse
from chancy.serialization.codec import encode
from chancy.states import TRANSITIONS, State
from chancy.text import shown

#: The maximum delay of a decision, in seconds: 100 years.
MAX_DELAY_S = 100 * 366 * 86_400.0
#: The maximum size of a result or meta of a decision, in bytes.
_MAX_JSON = 256 * 1024 * 1024


def check_decision(decision: object, before: Settlement) -> None:
    """Raise `TypeError` or `ValueError` unless a broker can store a changed decision.

    Only changed fields are checked, because a plugin is not responsible for the others.

    :param before: the decision that was passed to the plugin.
    """
    if type(decision) is not Settlement:
        refuse(decision, "judging()", "a Settlement")
    if decision.id != before.id or decision.lease != before.lease:
        raise ValueError(f"the settlement is for another claim: {shown(decision)}")
    for name, value, old in zip(Settlement._fields, decision, before, strict=True):
        if value is not old:
            _check_field(name, value)


def _check_field(name: str, value: object) -> None:
    match name:
        case "state":
            valid = isinstance(value, State) and value in TRANSITIONS[State.RUNNING]
        case "delay_s":
            # A comparison with NaN is false.
            valid = value is None or (
                isinstance(value, int | float)
                and not isinstance(value, bool)
                and abs(value) <= MAX_DELAY_S
            )
        case "run_at":
            aware = isinstance(value, datetime) and value.utcoffset() is not None
            valid = value is None or aware
        case "failure":
            valid = value is None or isinstance(value, Failure)
            if isinstance(value, Failure):
                encode(value.as_json(), what="the failure", limit=_MAX_JSON)
        case "result":
            valid = value is None or (isinstance(value, str) and _is_json(value, name))
        case "refund" | "crashed" | "resets_crashes":
            valid = isinstance(value, bool)
        case "meta":
            valid = value is None or (isinstance(value, str) and _is_json(value, name, kind=dict))
        case _:  # id and lease: equal, if not identical; claim and outcome: set by the worker
            valid = True
    if not valid:
        raise ValueError(f"a settlement with {name}={shown(value)} cannot be stored")


def _is_json(text: str, what: str, kind: type = object) -> bool:
    """Whether a string is JSON of a kind that ``jsonb`` accepts."""
    value = json.loads(text, parse_constant=_refuse_constant)
    encode(value, what=what, limit=_MAX_JSON)
    return isinstance(value, kind)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
