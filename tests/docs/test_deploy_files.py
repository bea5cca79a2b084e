"""The files of `deploy` and `compose.yaml` agree with each other, and with the command line."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.docs import source
from tests.docs.pages import page
from tests.support import kustomize
from tests.support.sources import ROOT

COMMANDS = dict(source.commands())
KUBERNETES = ROOT / "deploy" / "kubernetes"
BASE = KUBERNETES / "base"
PRODUCTION = KUBERNETES / "overlays" / "production"
RESOURCES: list[dict[str, Any]] = [
    resource
    for name in yaml.safe_load((BASE / "kustomization.yaml").read_text())["resources"]
    for resource in yaml.safe_load_all((BASE / name).read_text())
]
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
UNIT = configparser.ConfigParser(strict=False, interpolation=None)
UNIT.optionxform = str  # type: ignore[assignment, method-assign]
UNIT.read(ROOT / "deploy" / "systemd" / "chancy-worker.service")
#: Seconds that a worker needs for its last settlements after --shutdown-timeout.
SETTLING_S = 15


def of(kind: str, name: str = "") -> list[dict[str, Any]]:
    return [
        one for one in RESOURCES if one["kind"] == kind and one["metadata"]["name"].endswith(name)
    ]


def pods() -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """The name, the pod and the container of each workload."""
    for one in (*of("Deployment"), *of("Job")):
        spec = one["spec"]["template"]["spec"]
        (container,) = spec["containers"]
        yield one["metadata"]["name"], spec, container


def parsed(command: list[str]) -> dict[str, Any]:
    """The values of the parameters of a command line, without running it."""
    group = [word for word in command if not word.startswith("-")]
    path = next(p for n in (2, 1) if (p := " ".join(["chancy", *group[:n]])) in COMMANDS)
    arguments = command[path.count(" ") :]
    return COMMANDS[path].make_context(path, arguments).params


COMMAND_LINES = [
    *(container["args"] for _, _, container in pods()),
    *(one["command"] for one in COMPOSE.values() if one["image"] == "chancy"),
    shlex.split(UNIT["Service"]["ExecStart"])[1:],
]


@pytest.mark.parametrize("command", COMMAND_LINES, ids=" ".join)
def test_commands_of_the_files_are_accepted(command: list[str]) -> None:
    assert parsed(command) is not None


def test_variables_of_the_files_are_settings() -> None:
    known = page("docs/reference/settings.md").words
    given = {one["name"] for _, _, container in pods() for one in container["env"]}
    given |= {name for one in COMPOSE.values() for name in one.get("environment", {})}
    assert {name for name in given if name.startswith("CHANCY_")} <= known


def test_workers_have_time_to_stop() -> None:
    (worker,) = of("Deployment", "worker")
    spec = worker["spec"]["template"]["spec"]
    given = [
        (spec["terminationGracePeriodSeconds"], spec["containers"][0]["args"]),
        (
            int(COMPOSE["worker"]["stop_grace_period"].removesuffix("s")),
            COMPOSE["worker"]["command"],
        ),
        (int(UNIT["Service"]["TimeoutStopSec"]), shlex.split(UNIT["Service"]["ExecStart"])[1:]),
    ]
    for seconds, command in given:
        assert seconds >= parsed(command)["shutdown_timeout"] + SETTLING_S


def test_ports_of_probes_and_services_are_those_that_are_served() -> None:
    (worker,) = of("Deployment", "worker")
    (container,) = worker["spec"]["template"]["spec"]["containers"]
    (port,) = container["ports"]
    assert parsed(container["args"])["metrics"].endswith(f":{port['containerPort']}")
    assert worker["spec"]["template"]["metadata"]["annotations"]["prometheus.io/port"] == str(
        port["containerPort"]
    )
    (dashboard,) = of("Deployment", "dashboard")
    (shown,) = dashboard["spec"]["template"]["spec"]["containers"]
    assert parsed(shown["args"])["port"] == shown["ports"][0]["containerPort"]
    for one in (container, shown):
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert one[probe]["httpGet"]["port"] == one["ports"][0]["name"]
    paths = {container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("readiness", "liveness")}
    assert paths <= page("docs/guides/metrics.md").words | {"/readyz", "/healthz"}
    (service,) = of("Service")
    assert service["spec"]["ports"][0]["targetPort"] == shown["ports"][0]["name"]


def test_selectors_match_the_labels_of_their_pods() -> None:
    labels = {
        one["metadata"]["name"]: one["spec"]["template"]["metadata"]["labels"]
        for one in of("Deployment")
    }
    for one in (*of("Deployment"), *of("PodDisruptionBudget")):
        assert one["spec"]["selector"]["matchLabels"] == labels[one["metadata"]["name"]]
    (service,) = of("Service")
    assert service["spec"]["selector"] == labels[service["metadata"]["name"]]


def test_containers_run_with_no_privileges() -> None:
    for name, pod, container in pods():
        assert pod["securityContext"]["runAsNonRoot"], name
        assert f"--uid {pod['securityContext']['runAsUser']} " in (ROOT / "Dockerfile").read_text()
        assert not pod["automountServiceAccountToken"], name
        security = container["securityContext"]
        assert security["readOnlyRootFilesystem"], name
        assert not security["allowPrivilegeEscalation"], name
        assert security["capabilities"] == {"drop": ["ALL"]}, name
        assert container["resources"]["limits"].keys() == {"memory"}, name


def test_the_overlay_changes_what_is_there() -> None:
    rendered = {(one["kind"], one["metadata"]["name"]): one for one in kustomize.render(PRODUCTION)}
    assert {one["metadata"]["namespace"] for one in rendered.values()} == {"shop"}
    for (_, name), one in rendered.items():
        for container in one["spec"].get("template", {"spec": {}})["spec"].get("containers", ()):
            names = [variable["name"] for variable in container["env"]]
            assert names[:2] == ["CHANCY_DSN", "CHANCY_APP"], name
            assert "CHANCY_PLUGINS" not in names, name
            assert container["image"] == "shop:1.0", name
    scaled = rendered["ScaledObject", "chancy-worker"]["spec"]["scaleTargetRef"]["name"]
    assert "replicas" not in rendered["Deployment", scaled]["spec"]


#: The versions of Kubernetes whose schemas the manifests keep to.
VERSIONS = ("1.29", "1.37")
#: What the overlay uses of the custom resource of KEDA 2.
SCALED_OBJECT = {
    "type": "object",
    "additionalProperties": False,
    "required": ["apiVersion", "kind", "metadata", "spec"],
    "properties": {
        "apiVersion": {"const": "keda.sh/v1alpha1"},
        "kind": {"const": "ScaledObject"},
        "metadata": {"type": "object", "required": ["name"]},
        "spec": {
            "type": "object",
            "additionalProperties": False,
            "required": ["scaleTargetRef", "triggers"],
            "properties": {
                "scaleTargetRef": {
                    "type": "object",
                    "additionalProperties": False,
                    "required": ["name"],
                    "properties": {"name": {"type": "string"}},
                },
                "minReplicaCount": {"type": "integer", "minimum": 0},
                "maxReplicaCount": {"type": "integer", "minimum": 1},
                "cooldownPeriod": {"type": "integer", "minimum": 0},
                "triggers": {
                    "type": "array",
                    "minItems": 1,
                    "items": {
                        "type": "object",
                        "additionalProperties": False,
                        "required": ["type", "metadata"],
                        "properties": {
                            "type": {"const": "postgresql"},
                            # Numbers too are strings here.
                            "metadata": {
                                "type": "object",
                                "required": ["query", "targetQueryValue", "connectionFromEnv"],
                                "additionalProperties": {"type": "string"},
                            },
                        },
                    },
                },
            },
        },
    },
}


@pytest.fixture(scope="module")
def validating(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the schemas, which have 17,000 files: too many for all."""
    folder = tmp_path_factory.mktemp("schemas")
    program = folder / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    install = ["-m", "pip", "install", "--quiet", "--no-compile", "--disable-pip-version-check"]
    subprocess.run([program, *install, "kubernetes-validate==1.37.0"], check=True)
    return program


def refused(python: Path, folder: Path, resources: list[dict[str, Any]]) -> str:
    """What strict schemas say against resources; nothing if they have nothing to say."""
    file, schema = folder / "all.yaml", folder / "schema.json"
    words = ["-m", "kubernetes_validate", "--strict", "--quiet"]
    words += [word for version in VERSIONS for word in ("--kubernetes-version", version)]
    scaled = [one for one in resources if one["kind"] == "ScaledObject"]
    file.write_text(yaml.safe_dump_all([one for one in resources if one not in scaled]))
    said = [subprocess.run([python, *words, file], capture_output=True, text=True)]
    schema.write_text(json.dumps(SCALED_OBJECT))
    for one in scaled:
        file.write_text(json.dumps(one))
        words = ["-W", "ignore", "-m", "jsonschema", "--instance", str(file), str(schema)]
        said.append(subprocess.run([python, *words], capture_output=True, text=True))
    return "".join(one.stdout + one.stderr for one in said if one.returncode)


@pytest.mark.chaos
@pytest.mark.timeout(300)
def test_resources_keep_to_the_schemas_of_kubernetes(validating: Path, tmp_path: Path) -> None:
    for folder in (BASE, PRODUCTION):
        assert refused(validating, tmp_path, kustomize.render(folder)) == "", folder
    # See it find what is wrong.
    for kind, change, word in (
        ("Deployment", {"replica": 2}, "replica"),
        ("Job", {"backoffLimit": "six"}, "six"),
        ("ScaledObject", {"minReplicas": 1}, "minReplicas"),
    ):
        wrong = kustomize.render(PRODUCTION)
        next(one for one in wrong if one["kind"] == kind)["spec"].update(change)
        assert word in refused(validating, tmp_path, wrong)


def test_compose_names_files_and_services_that_are_there() -> None:
    for name, one in COMPOSE.items():
        assert set(one.get("depends_on", ())) <= COMPOSE.keys(), name
        for volume in one.get("volumes", ()):
            if volume.startswith("."):
                assert (ROOT / volume.partition(":")[0]).exists(), volume
    scraped = (ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text()
    (job,) = yaml.safe_load(scraped)["scrape_configs"]
    (found,) = job["dns_sd_configs"]
    assert set(found["names"]) <= COMPOSE.keys()
    assert re.search(rf":{found['port']}\b", " ".join(COMPOSE["worker"]["command"]))
