"""OpenTelemetry: spans of pushes and of the runs of jobs, in one trace; counts and durations."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, get_args

from chancy.attempt.failure import Failure
from chancy.attempt.outcome import (
    Lost,
    MemoryExceeded,
    Outcome,
    Raised,
    Released,
    SetAside,
    TimedOut,
)
from chancy.attempt.settlement import Settlement
from chancy.context.context import JobContext
from chancy.errors import ConfigurationError
from chancy.job.definition import Job
from chancy.plugin.plugin import Plugin
from chancy.plugin.pushing import PushContext
from chancy.states import State

try:
    from opentelemetry import context as contexts
    from opentelemetry import metrics, propagate, trace
    from opentelemetry.context import Context
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import (
        Link,
        NonRecordingSpan,
        Span,
        SpanContext,
        SpanKind,
        StatusCode,
        TraceFlags,
        TracerProvider,
    )
except ImportError as missing:  # pragma: no cover
    raise ConfigurationError(
        "the plugin chancy.opentelemetry needs opentelemetry-api: "
        "pip install 'chancy-queue[opentelemetry]'"
    ) from missing

__all__ = ["OpenTelemetry", "in_child"]

#: The key of a job's meta that holds the trace context, as the propagators write it.
KEY = "trace"
#: The key of the W3C's format in the carrier of a trace that is not sampled, usually the only one.
_TRACEPARENT = "traceparent"
_UNSAMPLED = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f][02468ace])")
#: The values of the attribute ``chancy.outcome``, by the class of the outcome.
_NAMES: Mapping[type, str] = {
    kind: re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__).lower() for kind in get_args(Outcome)
}
_STATES: Mapping[State, str] = {state: state.name.lower() for state in State}
#: Upper bounds of the histogram in seconds: those of the conventions, and longer ones.
_BOUNDS_S = (
    0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 30, 60, 300, 1_800,
    7_200,
)  # fmt: skip


class OpenTelemetry(Plugin):
    """Traces jobs: a span for each push, and a span for each attempt in the same trace. Counts
    pushes and attempts, with a histogram of the duration of attempts.

    The trace context is passed in the job's meta, as the globally configured propagators write it.
    If the trace of the caller is not sampled, the job is not traced.

    :param parent: whether the span of an attempt is a child of the span of its push. If not, each
        attempt begins a new trace. In both cases it is linked to the push.
    :param tracer_provider: creates the spans; None: the global one.
    :param meter_provider: creates the metrics; None: the global one.
    """

    around_in_child = f"{__name__}.in_child"

    def __init__(
        self,
        *,
        parent: bool = True,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
    ) -> None:
        self.parent = parent
        self._tracer = trace.get_tracer("chancy", tracer_provider=tracer_provider)
        meter = metrics.get_meter("chancy", meter_provider=meter_provider)
        self._sent = meter.create_counter(
            "messaging.client.sent.messages", "{message}", "Jobs that were pushed."
        )
        self._consumed = meter.create_counter(
            "messaging.client.consumed.messages", "{message}", "Attempts that ended."
        )
        self._durations = meter.create_histogram(
            "messaging.process.duration",
            "s",
            "Seconds for which attempts ran.",
            explicit_bucket_boundaries_advisory=_BOUNDS_S,
        )

    @classmethod
    def get_identifier(cls) -> str:
        return "chancy.opentelemetry"

    def pushing(self, job: Job[Any], context: PushContext) -> Job[Any]:
        attributes = _attributes("push", "create", job.queue, job.func)
        self._sent.add(1, attributes)
        if KEY in job.meta:
            return job
        current = contexts.get_current()
        if not _is_dropped(current):
            if job.id is not None:
                attributes = {**attributes, "messaging.message.id": str(job.id)}
            span = self._tracer.start_span(
                f"push {job.func}", kind=SpanKind.PRODUCER, attributes=attributes
            )
            span.end()
            current = trace.set_span_in_context(span)
        carrier: dict[str, str] = {}
        propagate.inject(carrier, current)
        return job.with_meta(**{KEY: carrier}) if carrier else job

    @contextmanager
    def around(self, context: JobContext) -> Generator[None]:
        pushed, dropped = _extracted(context.meta)
        if dropped:
            with _attached(pushed):
                yield
            return
        span = self._start(context, pushed)
        running = trace.set_span_in_context(span, pushed)
        carrier: dict[str, str] = {}
        propagate.inject(carrier, running)
        context.carry(**{KEY: carrier})
        try:
            with _attached(running):
                yield
        finally:
            if context.outcome is not None and span.is_recording():
                _record(span, context.outcome)
            span.end()

    def settled(self, batch: Sequence[Settlement], stale: Sequence[Settlement]) -> None:
        runs: defaultdict[tuple[str, str, str, str, str], list[float]] = defaultdict(list)
        for settlements, is_stale in ((batch, False), (stale, True)):
            for settlement in settlements:
                claim, outcome = settlement.claim, settlement.unusual
                if claim is None:
                    continue
                state = "stale" if is_stale else _STATES[settlement.state]
                if outcome is None:
                    run = claim.queue, claim.func, state, "returned", ""
                    runs[run].append(settlement.elapsed_s)
                elif not isinstance(outcome, Released | SetAside):
                    run = claim.queue, claim.func, state, _NAMES[type(outcome)], _error(outcome)[0]
                    runs[run].append(outcome.elapsed_s)
        for (queue, func, state, name, error), durations in runs.items():
            attributes = {
                **_attributes("run", "process", queue, func),
                "chancy.outcome": name,
                "chancy.state": state,
            }
            if error:
                attributes["error.type"] = error
            self._consumed.add(len(durations), attributes)
            for duration_s in durations:
                self._durations.record(duration_s, attributes)

    def _start(self, job: JobContext, pushed: Context) -> Span:
        attributes = {
            **_attributes("run", "process", job.queue, job.func),
            "messaging.message.id": str(job.id),
            "chancy.attempt": job.attempt,
            "chancy.max_attempts": job.max_attempts,
        }
        if job.worker_id is not None:
            attributes["messaging.client.id"] = str(job.worker_id)
        push = trace.get_current_span(pushed).get_span_context()
        return self._tracer.start_span(
            f"run {job.func}",
            context=pushed if self.parent else Context(),
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            links=[Link(push)] if push.is_valid else None,
        )


@contextmanager
def in_child(job: JobContext) -> Generator[None]:
    """Make the span of the attempt, which the worker has started, the current span in an executor
    process."""
    context, _ = _extracted(job.meta)
    with _attached(context):
        yield


def _extracted(meta: Mapping[str, Any]) -> tuple[Context, bool]:
    """The trace context in the meta of a job, or an empty one, and whether the trace is known not
    to be sampled."""
    carrier = meta.get(KEY)
    if not isinstance(carrier, Mapping):
        return Context(), False
    parent = carrier.get(_TRACEPARENT)
    if len(carrier) == 1 and isinstance(parent, str) and (found := _UNSAMPLED.fullmatch(parent)):
        # The usual case if few traces are sampled; takes a third of the time of the propagators.
        trace_id, span_id, flags = found.groups()
        span = SpanContext(int(trace_id, 16), int(span_id, 16), True, TraceFlags(int(flags, 16)))
        return trace.set_span_in_context(NonRecordingSpan(span), Context()), True
    # Other programs push jobs, too.
    texts = {name: value for name, value in carrier.items() if isinstance(value, str)}
    context = propagate.extract(texts, Context())
    return context, _is_dropped(context)


def _is_dropped(context: Context) -> bool:
    """Whether the caller's trace is not sampled, so that no span is needed."""
    caller = trace.get_current_span(context).get_span_context()
    return caller.is_valid and not caller.trace_flags.sampled


@contextmanager
def _attached(context: Context) -> Generator[None]:
    token = contexts.attach(context)
    try:
        yield
    finally:
        contexts.detach(token)


@lru_cache(maxsize=4_096)
def _attributes(operation: str, kind: str, queue: str, func: str) -> Mapping[str, str | int]:
    """Attributes by the semantic conventions of OpenTelemetry for messaging and code."""
    return {
        "messaging.system": "chancy",
        "messaging.operation.name": operation,
        "messaging.operation.type": kind,
        "messaging.destination.name": queue,
        "code.function.name": func,
    }


def _record(span: Span, outcome: Outcome) -> None:
    span.set_attribute("chancy.outcome", _NAMES[type(outcome)])
    error, why = _error(outcome)
    if isinstance(outcome, Raised):
        failure = outcome.failure
        span.add_event(
            "exception",
            {
                "exception.type": error,
                "exception.message": failure.message,
                "exception.stacktrace": failure.trace,
            },
        )
    if error:
        span.set_attribute("error.type", error)
        span.set_status(StatusCode.ERROR, why)


def _error(outcome: Outcome) -> tuple[str, str]:
    """The type and the description of the error; empty if the attempt did not fail."""
    match outcome:
        case Raised(failure=Failure(types=types, message=message)):
            error = types[0] if types else "unknown"
            return error, f"{error}: {message}"
        case TimedOut(limit_s=limit_s):
            return "chancy.TimedOut", f"its time limit of {limit_s:g} s has passed"
        case MemoryExceeded(limit_bytes=limit):
            why = f"its memory limit of {limit >> 20:,} MiB was exceeded"
            return "chancy.MemoryExceeded", why
        case Lost(why=why):
            return "chancy.Lost", why
        case _:
            return "", ""
