"""Diagrams of workflows in Mermaid and DOT, coloured by the states of their steps. Pure."""

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
    """A flowchart in Mermaid."""
    number = {step.name: f"s{place}" for place, step in enumerate(steps)}
    lines = ["flowchart TD"]
    for step in steps:
        label = _mermaid_text(f"{step.name}") + "<br/>" + _label(step)
        lines.append(f'    {number[step.name]}["{label}"]:::{_class(step.state)}')
    for step in steps:
        lines += [f"    {number[step.name]} --> {number[other]}" for other in step.next]
        if step.undoes in number:
            lines.append(f"    {number[step.undoes]} -. undo .-> {number[step.name]}")
    used = {step.state for step in steps}
    lines += [
        f"    classDef {_class(state)} fill:{colour},stroke:#666666,color:#000000"
        for state, colour in COLOURS.items()
        if state in used
    ]
    return "\n".join(lines) + "\n"


def dot(name: str, steps: Sequence[StepRecord]) -> str:
    """A digraph in DOT, for Graphviz."""
    number = {step.name: f"s{place}" for place, step in enumerate(steps)}
    lines = [f"digraph {_dot_text(name)} {{", '    node [shape=box, style="rounded,filled"];']
    for step in steps:
        label = _dot_text(f"{step.name}\n{_label(step)}")
        lines.append(f'    {number[step.name]} [label={label}, fillcolor="{COLOURS[step.state]}"];')
    for step in steps:
        lines += [f"    {number[step.name]} -> {number[other]};" for other in step.next]
        if step.undoes in number:
            lines.append(f"    {number[step.undoes]} -> {number[step.name]} [style=dashed];")
    return "\n".join([*lines, "}"]) + "\n"


def _label(step: StepRecord) -> str:
    took = "" if step.took_s is None else f" {step.took_s:.3f} s"
    return f"{step.state.value}{took}"


def _class(state: StepState) -> str:
    return state.value.replace(" ", "_")


def _mermaid_text(text: str) -> str:
    """Text with entities for characters that are special in Mermaid or HTML."""
    return "".join(
        character if character.isalnum() or character in " _-./:,()" else f"#{ord(character)};"
        for character in text
    )


def _dot_text(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
