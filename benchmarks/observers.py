"""The plugins of a worker, by the name of its mode."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

from chancy import Plugin, State
from chancy.attempt.settlement import Settlement
from chancy.context.context import JobContext
from chancy.plugins.batch import Batches
from chancy.plugins.metrics import Metrics
from chancy.plugins.opentelemetry import OpenTelemetry
from chancy.plugins.workflow import Workflows

#: The modes, in the order of a round; the first one is without a plugin.
NONE, METRICS, TRACED, TRACED_ALL, COUNTER, AROUND = MODES = (
    "no plugin",
    "Metrics",
    "Metrics and OpenTelemetry, 1 % sampled",
    "OpenTelemetry, all sampled",
    "a counter in settled",
    "around by contextmanager",
)
#: The modes of `benchmarks.batches` and of `benchmarks.workflows`.
BATCHES, WORKFLOWS = "Batches", "Workflows"


class SettledCounter(Plugin):
    """The example of docs/guides/plugins.md."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str, State]] = Counter()

    def settled(self, batch: Sequence[Settlement], stale: Sequence[Settlement]) -> None:
        self.counts.update(
            (claim.queue, claim.func, settlement.state)
            for settlement in batch
            if (claim := settlement.claim) is not None
        )


class IdleAround(Plugin):
    """Does nothing around each run."""

    @contextmanager
    def around(self, context: JobContext) -> Generator[None]:
        yield


def plugins(mode: str) -> list[Plugin]:
    """New plugins of a mode. Spans are made by the SDK, and go nowhere."""
    made: Mapping[str, list[Plugin]] = {
        NONE: [],
        METRICS: [Metrics()],
        TRACED: [Metrics(), _tracing(0.01)],
        TRACED_ALL: [_tracing(1.0)],
        COUNTER: [SettledCounter()],
        AROUND: [IdleAround()],
        BATCHES: [Batches()],
        WORKFLOWS: [Workflows()],
    }
    return made[mode]


def _tracing(share: float) -> Plugin:
    sampler = ParentBased(TraceIdRatioBased(share))
    return OpenTelemetry(tracer_provider=TracerProvider(sampler=sampler))
