"""Renders a folder as ``kubectl kustomize`` does, as far as the manifests of `deploy` need it."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

Resource = dict[str, Any]


def render(folder: Path) -> list[Resource]:
    """The resources of a folder, changed as its kustomization says.

    :raises NotImplementedError: the kustomization has a field or a patch that this does not know.
    """
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    fields = {name: kustomization.pop(name, None) for name in ("apiVersion", "kind", "resources")}
    assert fields["kind"] == "Kustomization", folder
    resources: list[Resource] = []
    for name in fields["resources"]:
        path = folder / name
        resources += render(path) if path.is_dir() else yaml.safe_load_all(path.read_text())
    if unknown := kustomization.keys() - _TRANSFORMERS:
        raise NotImplementedError(f"{folder}: {', '.join(sorted(unknown))}")
    for name, transform in _TRANSFORMERS.items():
        if name in kustomization:
            transform(resources, kustomization[name])
    return resources


def _namespace(resources: list[Resource], namespace: str) -> None:
    for resource in resources:
        resource["metadata"]["namespace"] = namespace


def _labels(resources: list[Resource], labels: list[dict[str, Any]]) -> None:
    for one in labels:
        if one.keys() != {"pairs"}:
            raise NotImplementedError(f"labels: {sorted(one)}")
        for resource in resources:
            resource["metadata"].setdefault("labels", {}).update(one["pairs"])


def _images(resources: list[Resource], images: list[dict[str, str]]) -> None:
    named = {one["name"]: f"{one['newName']}:{one['newTag']}" for one in images}
    for container in _containers(resources):
        container["image"] = named.get(container["image"], container["image"])


def _containers(value: object) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield from value.get("containers", ())
        value = list(value.values())
    if isinstance(value, list):
        for one in value:
            yield from _containers(one)


def _patches(resources: list[Resource], patches: list[dict[str, Any]]) -> None:
    for patch in patches:
        target = patch["target"]
        if not target.keys() <= {"kind", "name"}:
            raise NotImplementedError(f"a target with {sorted(target)}")
        hit = [
            one
            for one in resources
            if re.fullmatch(target["kind"], one["kind"])
            and re.fullmatch(target.get("name", ".*"), one["metadata"]["name"])
        ]
        assert hit, f"nothing is {target}"
        for resource in hit:
            for step in yaml.safe_load(patch["patch"]):
                _apply(resource, step)


def _apply(resource: Resource, step: dict[str, Any]) -> None:
    """One step of a JSON patch (RFC 6902) on what is there."""
    *parents, last = step["path"].removeprefix("/").split("/")
    at: Any = resource
    for part in parents:
        at = at[int(part)] if isinstance(at, list) else at[part]
    key: Any = int(last) if isinstance(at, list) else last
    at[key]  # raises if it is not there
    match step["op"]:
        case "replace":
            at[key] = copy.deepcopy(step["value"])
        case "remove":
            del at[key]
        case other:
            raise NotImplementedError(f"the step {other}")


#: In the order in which kustomize applies them.
_TRANSFORMERS: dict[str, Callable[[list[Resource], Any], None]] = {
    "patches": _patches,
    "namespace": _namespace,
    "labels": _labels,
    "images": _images,
}
