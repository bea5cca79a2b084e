"""What a good plan is."""

from __future__ import annotations

from tests.plans import functions

#: Nodes that read or order more than the batch. A sort of the batch itself is no Sort of jobs.
FORBIDDEN = {"Seq Scan", "Bitmap Heap Scan", "Sort", "Incremental Sort", "Hash Join", "Merge Join"}
#: Small tables, read whole on purpose.
SMALL = {"queues", "workers"}


def check_plan(plan: functions.Plan, where: str, *, batch: int) -> None:
    """Fail unless the plan goes by indexes and handles about a batch."""
    for node in functions.nodes(plan):
        if node.get("Relation Name") in SMALL:
            continue
        # What the statement itself has just taken may be ordered: it is at most a batch.
        of_the_batch = all(
            inner["Node Type"] in ("CTE Scan", "Function Scan", node["Node Type"])
            for inner in functions.nodes(node)
        )
        assert node["Node Type"] not in FORBIDDEN or of_the_batch, f"{where}: {node}"
    assert functions.touched(plan) <= 4 * batch, f"{where} touched {functions.touched(plan)} rows"
