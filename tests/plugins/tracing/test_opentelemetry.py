"""Spans of pushes and attempts."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from uuid import uuid4

import pytest
from opentelemetry import baggage, propagate, trace
from opentelemetry.context import Context
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased, Sampler
from opentelemetry.trace import SpanKind, StatusCode

from chancy import Chancy, Plugin, Queue, State, Worker
from chancy.context.context import JobContext
from chancy.plugins import opentelemetry
from chancy.plugins.batch import Batch, Batches, BatchState
from chancy.plugins.dead_letter import DeadLetters
from chancy.plugins.opentelemetry import OpenTelemetry
from chancy.plugins.retry import Retries
from chancy.plugins.workflow import Workflow, Workflows
from chancy.retry import Constant
from tests.plugins.tracing.traced_jobs import (
    begun,
    broken,
    here,
    in_loop,
    in_process,
    in_thread,
    in_thread_until_repaired,
    until_cancelled,
)
from tests.support.presence import present
from tests.support.waiting import eventually


class Watching(Plugin):
    """Keeps the span that is current around each run."""

    def __init__(self) -> None:
        self.spans: list[str] = []

    def get_dependencies(self) -> Sequence[str]:
        return ["chancy.opentelemetry"]

    @contextmanager
    def around(self, context: JobContext) -> Generator[None]:
        self.spans.append(here())
        yield


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
    context = present(span.get_span_context())
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


@pytest.mark.parametrize(
    "carrier",
    [
        {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"},
        {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-02"},
        {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-03"},
        {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-000"},
        {"traceparent": f"00-{'0' * 32}-b7ad6b7169203331-00"},
        {"traceparent": f"00-0af7651916cd43dd8448eb211c80319c-{'0' * 16}-00"},
        {
            "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00",
            "tracestate": "vendor=1",
            "baggage": "tenant=7",
        },
    ],
)
def test_a_trace_context_is_read_as_the_propagators_read_it(carrier: dict[str, str]) -> None:
    expected = propagate.extract(carrier, Context())
    found, dropped = opentelemetry._extracted({"trace": carrier})
    span = trace.get_current_span(found).get_span_context()
    assert span == trace.get_current_span(expected).get_span_context()
    assert baggage.get_all(found) == baggage.get_all(expected)
    assert dropped == (span.is_valid and not span.trace_flags.sampled)


async def test_batches_workflows_and_replays_are_in_the_trace_of_the_request(dsn: str) -> None:
    traced, batches, letters, flows = Traced(), Batches(), DeadLetters(), Workflows()
    # The watching plugin is given first, and entered last: it depends on the tracing one.
    watching = Watching()
    plugins = [watching, OpenTelemetry(tracer_provider=traced.provider), batches, letters, flows]
    queues = [Queue("looped", executor="async"), Queue("threaded", executor="thread")]
    chancy = Chancy(dsn, queues=queues, plugins=plugins)
    await chancy.migrate()
    broken.set()
    async with chancy, Worker(chancy):
        batch = Batch(name="batch", on_finish=in_loop.job())
        with traced.tracer.start_as_current_span("request") as request:
            jobs = [in_thread.job(), in_thread_until_repaired.job()]
            flow = Workflow("flow").add(in_loop.job(), "a").add(in_thread.job(), "b", after="a")
            async with chancy.transaction() as transaction:
                reference = await batches.push(chancy, batch, jobs, within=transaction)
                await chancy.push(flow, within=transaction)
        assert await reference.wait(20) is BatchState.FAILED
        [letter] = await letters.find(chancy)
        broken.clear()
        assert await letters.replay(chancy, letter.id) is not None
        await eventually(lambda: len(traced.named("run")) == 6)

    runs = traced.named("run")
    assert sorted((run.name.rpartition(".")[2], run.status.status_code.name) for run in runs) == [
        ("in_loop", "UNSET"),
        ("in_loop", "UNSET"),
        ("in_thread", "UNSET"),
        ("in_thread", "UNSET"),
        ("in_thread_until_repaired", "ERROR"),
        ("in_thread_until_repaired", "UNSET"),
    ]
    pushes = {seen(push): push for push in traced.named("push")}
    for run in runs:
        push = pushes[parent_of(run)]
        assert push.name.removeprefix("push") == run.name.removeprefix("run")
        assert push.parent is not None
        assert push.parent.span_id == request.get_span_context().span_id
    assert sorted(span.rpartition(" ")[0] for span in watching.spans) == sorted(map(seen, runs))


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


async def test_pushes_and_attempts_are_counted_and_timed(dsn: str) -> None:
    reader = InMemoryMetricReader()
    meters = MeterProvider([reader])
    plugin = OpenTelemetry(meter_provider=meters)
    queues = [Queue("looped", executor="async"), Queue("threaded", executor="thread")]
    plugins = [plugin, Retries(Constant(0.01))]
    async with Chancy(dsn, queues=queues, plugins=plugins) as chancy, Worker(chancy):
        jobs = [in_loop.job(fails=1), in_loop.job(), in_thread.job().with_meta(trace={})]
        for reference in await chancy.push_many(jobs):
            await reference.wait(20)

        def points() -> dict[tuple[str, ...], int]:
            return counted(reader)

        looped, threaded = in_loop.job().func, in_thread.job().func
        ran = ("messaging.client.consumed.messages", "run", "process")
        took = ("messaging.process.duration", "run", "process")
        expected: dict[tuple[str, ...], int] = {
            ("messaging.client.sent.messages", "push", "create", "looped", looped): 2,
            ("messaging.client.sent.messages", "push", "create", "threaded", threaded): 1,
        }
        for name in (ran, took):
            failed = ("raised", "scheduled", "builtins.KeyError")
            expected |= {
                (*name, "looped", looped, *failed): 1,
                (*name, "looped", looped, "returned", "succeeded"): 2,
                (*name, "threaded", threaded, "returned", "succeeded"): 1,
            }
        await eventually(lambda: points() == expected)
    meters.shutdown()


def counted(reader: InMemoryMetricReader) -> dict[tuple[str, ...], int]:
    """The numbers of all metrics, by their name and the values of their attributes."""
    data = reader.get_metrics_data()
    found = {}
    for metric in data.resource_metrics[0].scope_metrics[0].metrics if data else ():
        for point in metric.data.data_points:
            attributes = dict(point.attributes or {})
            assert attributes.pop("messaging.system") == "chancy"
            texts = [str(value) for value in attributes.values()]
            if isinstance(point, HistogramDataPoint):
                assert 0 < point.sum < 20 * point.count
                value: int = point.count
            else:
                value = int(point.value)  # type: ignore[union-attr]
            found[metric.name, *texts] = value
    return found
