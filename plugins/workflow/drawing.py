"""Workflows as pictures: Mermaid and DOT, by the states of their steps. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from chancy.plugins.workflow.record import StepRecord, StepState

#: Fill colours by state.
COLOURS: Mapping[StepState, str] = {
    StepState.WAITING: "#eeeeee",
    StepState.AWAITING_SIGNAL: "#fff2cc",
    StepState.PENDING: "#dae8fc",
    StepState.SCHEDULED: "#dae8fc",
    StepState.HELD: "#dae8fc",
    StepState.RUNNING: "#9fc5f8",
    StepState.ENDING: "#9fc5f8",
    StepState.SUCCEEDED: "#b6d7a8",
    StepState.FAILED: "#ea9999",
    StepState.CANCELLED: "#cccccc",
    StepState.IGNORED: "#f9cb9c",
}


def mermaid(steps: Sequence[StepRecord]) -> str:
    """A flowchart as Mermaid reads it."""
    number = {one.name: f"s{place}" for place, one in enumerate(steps)}
    lines = ["flowchart TD"]
    for one in steps:
        label = _mermaid_text(f"{one.name}") + "<br/>" + _label(one)
        lines.append(f'    {number[one.name]}["{label}"]:::{_class(one.state)}')
    for one in steps:
        lines += [f"    {number[one.name]} --> {number[other]}" for other in one.next]
        if one.undoes in number:
            lines.append(f"    {number[one.undoes]} -. undo .-> {number[one.name]}")
    used = {one.state for one in steps}
    lines += [
        f"    classDef {_class(state)} fill:{colour},stroke:#666666,color:#000000"
        for state, colour in COLOURS.items()
        if state in used
    ]
    return "\n".join(lines) + "\n"


def dot(name: str, steps: Sequence[StepRecord]) -> str:
    """A digraph as Graphviz reads it."""
    number = {one.name: f"s{place}" for place, one in enumerate(steps)}
    lines = [f"digraph {_dot_text(name)} {{", '    node [shape=box, style="rounded,filled"];']
    for one in steps:
        label = _dot_text(f"{one.name}\n{_label(one)}")
        lines.append(f'    {number[one.name]} [label={label}, fillcolor="{COLOURS[one.state]}"];')
    for one in steps:
        lines += [f"    {number[one.name]} -> {number[other]};" for other in one.next]
        if one.undoes in number:
            lines.append(f"    {number[one.undoes]} -> {number[one.name]} [style=dashed];")
    return "\n".join([*lines, "}"]) + "\n"


def _label(one: StepRecord) -> str:
    took = "" if one.took_s is None else f" {one.took_s:.3f} s"
    return f"{one.state.value}{took}"


def _class(state: StepState) -> str:
    return state.value.replace(" ", "_")


def _mermaid_text(text: str) -> str:
    """Entities for whatever means something to Mermaid or to HTML."""
    return "".join(
        character if character.isalnum() or character in " _-./:,()" else f"#{ord(character)};"
        for character in text
    )


def _dot_text(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
