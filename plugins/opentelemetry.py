"""OpenTelemetry: spans of pushes and of the runs of jobs, in one trace."""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

from chancy.attempt.failure import Failure
from chancy.attempt.outcome import Lost, MemoryExceeded, Outcome, Raised, TimedOut
from chancy.context.context import JobContext
from chancy.errors import ConfigurationError
from chancy.job.definition import Job
from chancy.plugin.plugin import Plugin

try:
    from opentelemetry import context as contexts
    from opentelemetry import propagate, trace
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span, SpanKind, StatusCode, TracerProvider
except ImportError as missing:  # pragma: no cover
    raise ConfigurationError(
        "the plugin chancy.opentelemetry needs opentelemetry-api: "
        "pip install 'chancy-queue[opentelemetry]'"
    ) from missing

__all__ = ["OpenTelemetry", "in_child"]

#: The key of a job's meta that holds the trace context, as the propagators write it.
KEY = "trace"
_WORDS = re.compile(r"(?<=[a-z])(?=[A-Z])")


class OpenTelemetry(Plugin):
    """Traces jobs: a span for each push, and a span for each attempt in the same trace.

    The trace context travels in the job's meta, as the globally configured propagators write it. A
    job whose caller is in a trace that is not sampled is not traced.

    :param parent: whether the span of an attempt is a child of the span of its push. If not, each
        attempt begins a trace of its own. It is linked to the push in both cases.
    :param tracer_provider: makes the spans; None: the global one.
    """

    around_in_child = f"{__name__}.in_child"

    def __init__(
        self, *, parent: bool = True, tracer_provider: TracerProvider | None = None
    ) -> None:
        self.parent = parent
        self._tracer = trace.get_tracer("chancy", tracer_provider=tracer_provider)

    @classmethod
    def get_identifier(cls) -> str:
        return "chancy.opentelemetry"

    def pushing(self, job: Job[Any]) -> Job[Any]:
        if KEY in job.meta:
            return job
        context = contexts.get_current()
        if not _is_dropped(context):
            attributes = _attributes("push", "create", job.queue, job.func)
            if job.id is not None:
                attributes["messaging.message.id"] = str(job.id)
            span = self._tracer.start_span(
                f"push {job.func}", kind=SpanKind.PRODUCER, attributes=attributes
            )
            span.end()
            context = trace.set_span_in_context(span)
        carrier: dict[str, str] = {}
        propagate.inject(carrier, context)
        return job.with_meta(**{KEY: carrier}) if carrier else job

    @contextmanager
    def around(self, context: JobContext) -> Generator[None]:
        pushed = _extracted(context.meta)
        if _is_dropped(pushed):
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

    def _start(self, job: JobContext, pushed: Context) -> Span:
        attributes = _attributes("run", "process", job.queue, job.func) | {
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
    """Make the span of the attempt, which the worker has started, the current one in an executor
    process."""
    with _attached(_extracted(job.meta)):
        yield


def _extracted(meta: Mapping[str, Any]) -> Context:
    """The trace context in the meta of a job; an empty one without one."""
    carrier = meta.get(KEY)
    if not isinstance(carrier, Mapping):
        return Context()
    # Other programs push jobs, too.
    texts = {name: value for name, value in carrier.items() if isinstance(value, str)}
    return propagate.extract(texts, Context())


def _is_dropped(context: Context) -> bool:
    """Whether the caller's trace is not sampled, so that no span of it needs to be made."""
    caller = trace.get_current_span(context).get_span_context()
    return caller.is_valid and not caller.trace_flags.sampled


@contextmanager
def _attached(context: Context) -> Generator[None]:
    token = contexts.attach(context)
    try:
        yield
    finally:
        contexts.detach(token)


def _attributes(operation: str, kind: str, queue: str, func: str) -> dict[str, str | int]:
    """By the semantic conventions of OpenTelemetry for messaging and code."""
    return {
        "messaging.system": "chancy",
        "messaging.operation.name": operation,
        "messaging.operation.type": kind,
        "messaging.destination.name": queue,
        "code.function.name": func,
    }


def _record(span: Span, outcome: Outcome) -> None:
    span.set_attribute("chancy.outcome", _WORDS.sub("_", type(outcome).__name__).lower())
    match outcome:
        case Raised(failure=Failure(types=types, message=message, trace=text)):
            kind = types[0] if types else "unknown"
            span.add_event(
                "exception",
                {
                    "exception.type": kind,
                    "exception.message": message,
                    "exception.stacktrace": text,
                },
            )
            why = f"{kind}: {message}"
        case TimedOut(limit_s=limit_s):
            kind, why = "chancy.TimedOut", f"its time limit of {limit_s:g} s has passed"
        case MemoryExceeded(limit_bytes=limit):
            kind = "chancy.MemoryExceeded"
            why = f"its memory limit of {limit >> 20:,} MiB was exceeded"
        case Lost(why=why):
            kind = "chancy.Lost"
        case _:
            return
    span.set_attribute("error.type", kind)
    span.set_status(StatusCode.ERROR, why)
