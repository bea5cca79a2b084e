"""Spans of pushes and attempts."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from uuid import uuid4

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased, Sampler
from opentelemetry.trace import SpanKind, StatusCode

from chancy import Chancy, Queue, State, Worker
from chancy.plugins.opentelemetry import OpenTelemetry
from chancy.plugins.retry import Retries
from chancy.retry import Constant
from tests.plugins.tracing.traced_jobs import begun, in_loop, in_process, in_thread, until_cancelled
from tests.support.waiting import eventually


class Traced:
    """A tracer whose spans are kept."""

    def __init__(self, sampler: Sampler = ALWAYS_ON) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(sampler=ParentBased(sampler))
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("tests")

    def named(self, start: str) -> Sequence[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name.startswith(start)]


@asynccontextmanager
async def running(
    dsn: str, traced: Traced, *queues: str, parent: bool = True
) -> AsyncGenerator[Chancy]:
    plugin = OpenTelemetry(tracer_provider=traced.provider, parent=parent)
    kinds = {"looped": "async", "threaded": "thread", "forked": "process"}
    declared = [Queue(name, executor=kinds[name], concurrency=1) for name in queues]
    chancy = Chancy(dsn, queues=declared, plugins=[plugin, Retries(Constant(0.01))])
    async with chancy, Worker(chancy):
        yield chancy


def seen(span: ReadableSpan) -> str:
    context = span.get_span_context()
    assert context is not None
    return f"{context.trace_id:032x} {context.span_id:016x}"


def parent_of(span: ReadableSpan) -> str:
    assert span.parent is not None
    return f"{span.parent.trace_id:032x} {span.parent.span_id:016x}"


async def test_attempts_are_children_of_the_push_and_current_in_the_function(dsn: str) -> None:
    traced = Traced()
    id = uuid4()
    async with running(dsn, traced, "looped", "threaded") as chancy:
        with traced.tracer.start_as_current_span("request") as request:
            jobs = [in_loop.job(fails=1).with_id(id), in_thread.job()]
            references = await chancy.push_many(jobs)
        looped, threaded = [await reference.wait(20) for reference in references]

    [push] = traced.named("push tests.plugins.tracing.traced_jobs.in_loop")
    assert push.kind is SpanKind.PRODUCER
    assert push.parent is not None
    assert push.parent.span_id == request.get_span_context().span_id
    failed, succeeded = traced.named("run tests.plugins.tracing.traced_jobs.in_loop")
    assert parent_of(failed) == parent_of(succeeded) == seen(push)
    assert str(looped.result).rpartition(" ")[0] == seen(succeeded)
    [thread] = traced.named("run tests.plugins.tracing.traced_jobs.in_thread")
    assert str(threaded.result).rpartition(" ")[0] == seen(thread)

    assert [link.context.span_id for link in failed.links] == [push.get_span_context().span_id]  # type: ignore[union-attr]
    assert failed.status.status_code is StatusCode.ERROR
    [event] = failed.events
    assert event.attributes is not None
    assert event.attributes["exception.type"] == "builtins.KeyError"
    assert "in in_loop" in str(event.attributes["exception.stacktrace"])
    attributes = dict(succeeded.attributes or {})
    assert attributes.pop("messaging.client.id") == str(looped.worker_id)
    assert attributes == {
        "messaging.system": "chancy",
        "messaging.operation.name": "run",
        "messaging.operation.type": "process",
        "messaging.destination.name": "looped",
        "messaging.message.id": str(id),
        "code.function.name": looped.func,
        "chancy.attempt": 2,
        "chancy.max_attempts": 25,
        "chancy.outcome": "returned",
    }
    stored = looped.meta["trace"]["traceparent"]
    assert stored.split("-")[1:3] == seen(push).split()


async def test_an_executor_process_is_in_the_span_of_the_attempt(dsn: str) -> None:
    traced = Traced()
    async with running(dsn, traced, "forked") as chancy:
        references = await chancy.push_many([in_process.job(), in_process.job(fails=True)])
        done = await references[0].wait(30)
        await references[1].wait(30)
    succeeded, failed = sorted(
        traced.named("run"), key=lambda span: span.status.status_code is StatusCode.ERROR
    )
    assert str(done.result).rpartition(" ")[0] == seen(succeeded)
    [event] = failed.events
    assert event.attributes is not None
    assert seen(failed) in str(event.attributes["exception.message"])


async def test_jobs_of_a_dropped_trace_have_no_spans(dsn: str) -> None:
    traced = Traced(ALWAYS_OFF)
    async with running(dsn, traced, "looped") as chancy:
        with traced.tracer.start_as_current_span("request") as request:
            reference = await chancy.push(in_loop.job())
        done = await reference.wait(20)
    context = request.get_span_context()
    assert traced.exporter.get_finished_spans() == ()
    # Spans that the function makes are dropped with the caller's.
    trace_id, span_id, flags = str(done.result).split()
    assert (trace_id, span_id) == (f"{context.trace_id:032x}", f"{context.span_id:016x}")
    assert not int(flags, 16) & trace.TraceFlags.SAMPLED


async def test_a_traced_job_can_be_stopped(dsn: str) -> None:
    traced = Traced()
    async with running(dsn, traced, "threaded") as chancy:
        reference = await chancy.push(until_cancelled.job())
        await eventually(begun.is_set)
        await chancy.cancel(reference.id)
        done = await reference.wait(20)
    assert done.state is State.CANCELLED
    [run] = traced.named("run")
    assert (run.attributes or {})["chancy.outcome"] == "cancelled"
    assert run.status.status_code is StatusCode.UNSET


async def test_attempts_can_begin_traces_that_are_linked_to_the_push(dsn: str) -> None:
    traced = Traced()
    async with running(dsn, traced, "looped", parent=False) as chancy:
        await (await chancy.push(in_loop.job())).wait(20)
    [push], [run] = traced.named("push"), traced.named("run")
    assert run.parent is None
    assert run.links[0].context.span_id == push.get_span_context().span_id  # type: ignore[union-attr]


async def test_an_unreadable_trace_context_begins_a_trace(dsn: str) -> None:
    traced = Traced()
    carriers = [7, [], {"traceparent": 5, "tracestate": {}}, {"traceparent": "00-zz-yy-01"}]
    async with running(dsn, traced, "looped") as chancy:
        jobs = [in_loop.job().with_meta(trace=carrier) for carrier in carriers]
        done = [await one.wait(20) for one in await chancy.push_many(jobs)]
    runs = traced.exporter.get_finished_spans()
    assert [(run.parent, run.links) for run in runs] == [(None, ())] * len(carriers)
    assert [one.meta["trace"] for one in done] == carriers
