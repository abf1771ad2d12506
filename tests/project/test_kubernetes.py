"""The Kubernetes files: against the API's own schemas, and against each other."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any, Literal

import kubernetes_validate
import msgspec
import pytest
import yaml

import aaiclick_queue
from aaiclick_queue.cli.fleet_up import WIND_DOWN_SECONDS
from aaiclick_queue.fleet.file import read
from tests.project.deployables import (
    FLEET,
    MANIFESTS,
    Document,
    containers,
    documents,
    grace_seconds,
    healthcheck,
    shown,
    stages,
    the,
)
from tests.servers import find_tool

VERSIONS = ("1.30", "1.37")  # the oldest that is worth a promise, and the newest whose schemas are known
NOT_APPLIED = {"secret.example.yaml", "migrate.yaml", "hpa.yaml", "kustomization.yaml"}
NOT_APPLIED |= {"keda.yaml", "keda-postgres.yaml", "server.yaml", "servicemonitor.yaml"}
KUBERNETES = MANIFESTS[0].parent
ALL = [(file, document) for file in MANIFESTS for document in documents(file)]


class Metadata(msgspec.Struct, forbid_unknown_fields=True):
    name: str


class SecretKey(msgspec.Struct, forbid_unknown_fields=True):
    parameter: str
    name: str
    key: str


class AuthenticationSpec(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    secret_target_ref: list[SecretKey]


class TriggerAuthentication(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    api_version: Literal["keda.sh/v1alpha1"]
    kind: Literal["TriggerAuthentication"]
    metadata: Metadata
    spec: AuthenticationSpec


class Query(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    target_query_value: str
    query: str


class Trigger(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    type: Literal["postgresql"]
    name: str
    metric_type: Literal["AverageValue", "Value"]
    authentication_ref: Metadata
    metadata: Query


class Address(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    url: str
    value_location: str
    target_value: str
    auth_mode: Literal["bearer"]


class ServerTrigger(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    type: Literal["metrics-api"]
    name: str
    metric_type: Literal["AverageValue", "Value"]
    authentication_ref: Metadata
    metadata: Address


class Fallback(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    failure_threshold: int
    replicas: int
    behavior: Literal["static", "currentReplicas", "currentReplicasIfHigher", "currentReplicasIfLower"]


class AutoscalerConfig(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    behavior: dict[str, Any]  # as in hpa.yaml, whose schema is known


class Advanced(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    horizontal_pod_autoscaler_config: AutoscalerConfig


class ScaledSpec(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    scale_target_ref: Metadata
    min_replica_count: int
    max_replica_count: int
    polling_interval: int
    fallback: Fallback
    advanced: Advanced
    triggers: list[Trigger]


class ScaledObject(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    api_version: Literal["keda.sh/v1alpha1"]
    kind: Literal["ScaledObject"]
    metadata: Metadata
    spec: ScaledSpec


class ServerScaledSpec(ScaledSpec, forbid_unknown_fields=True, rename="camel"):
    triggers: list[ServerTrigger]  # type: ignore[assignment]


class ServerScaledObject(ScaledObject, forbid_unknown_fields=True, rename="camel"):
    spec: ServerScaledSpec


class KeyOfSecret(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    key: str


class Authorization(msgspec.Struct, forbid_unknown_fields=True):
    credentials: KeyOfSecret


class Endpoint(msgspec.Struct, forbid_unknown_fields=True):
    port: str
    path: str
    interval: str
    authorization: Authorization


class Selector(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    match_labels: dict[str, str]


class MonitorSpec(msgspec.Struct, forbid_unknown_fields=True):
    selector: Selector
    endpoints: list[Endpoint]


class ServiceMonitor(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    api_version: Literal["monitoring.coreos.com/v1"]
    kind: Literal["ServiceMonitor"]
    metadata: Metadata
    spec: MonitorSpec


class Image(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    name: str
    new_name: str
    new_tag: str


class Kustomization(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    api_version: Literal["kustomize.config.k8s.io/v1beta1"]
    kind: Literal["Kustomization"]
    namespace: str
    resources: list[str]
    images: list[Image]


OF_NO_SCHEMA = {one.__name__: one for one in (TriggerAuthentication, ScaledObject, ServiceMonitor, Kustomization)}


def scaled() -> ScaledSpec:
    return msgspec.convert(the("ScaledObject"), ScaledObject).spec


def kustomization() -> Kustomization:
    return msgspec.convert(the("Kustomization"), Kustomization)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("file", "document"), ALL, ids=lambda value: value.name if isinstance(value, Path) else "")
def test_a_document_fits_its_schema(file: Path, document: Document, version: str) -> None:
    if document["kind"] in OF_NO_SCHEMA:
        by_server = file.name == "keda.yaml" and document["kind"] == "ScaledObject"
        msgspec.convert(document, ServerScaledObject if by_server else OF_NO_SCHEMA[document["kind"]])
    else:
        kubernetes_validate.validate(document, version, strict=True)


def test_a_document_with_a_mistake_would_not() -> None:
    broken = the("Deployment")
    broken["spec"]["template"]["spec"]["terminationGracePeriod"] = 75
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, VERSIONS[0], strict=True)


def test_kustomize_applies_what_it_should_and_tells_of_the_rest() -> None:
    assert {file.name for file in MANIFESTS} - set(kustomization().resources) == NOT_APPLIED
    text = (KUBERNETES / "kustomization.yaml").read_text()
    assert [name for name in NOT_APPLIED - {"kustomization.yaml"} if name not in text] == []


@pytest.mark.needs_tool("kubectl")
def test_kustomize_puts_them_together() -> None:
    ran = subprocess.run([str(find_tool("kubectl")), "kustomize", KUBERNETES], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    made = list(yaml.safe_load_all(ran.stdout))
    assert {one["kind"] for one in made} == {"Namespace", "ConfigMap", "Deployment", "PodDisruptionBudget"}
    for one in made:
        kubernetes_validate.validate(one, VERSIONS[-1], strict=True)
        assert one["metadata"].get("namespace", one["metadata"]["name"]) == kustomization().namespace
    [image] = kustomization().images
    [container] = [container for one in made for container in containers(one)]
    assert container["image"] == f"{image.new_name}:{image.new_tag}"


@pytest.mark.parametrize("kind", ["Deployment", "Job"])
def test_a_pod_may_do_nothing_that_it_need_not(kind: str) -> None:
    pod = the(kind)["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault"
    assert pod["automountServiceAccountToken"] is False
    [container] = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container["resources"]["requests"].keys() == {"cpu", "memory"}
    assert container["image"] == f"aaiclick-queue-fleet:{aaiclick_queue.__version__}"


def test_a_pod_is_the_user_of_the_image_and_writes_where_that_may() -> None:
    pod = the("Deployment")["spec"]["template"]["spec"]
    [user] = [step.text for step in stages()[-1] if step.name == "USER"]
    assert user == f"{pod['securityContext']['runAsUser']}:{pod['securityContext']['runAsGroup']}"
    [container] = pod["containers"]
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    assert mounts.keys() == {"/run/aaiclick-queue", "/tmp", "/var/log/aaiclick-queue"}
    assert set(mounts.values()) == {volume["name"] for volume in pod["volumes"] if "emptyDir" in volume}


def test_a_pod_drains_before_it_is_killed() -> None:
    pod = the("Deployment")["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] >= grace_seconds("workers/kubernetes") + WIND_DOWN_SECONDS
    assert not any("lifecycle" in container for container in pod["containers"])


def test_the_probes_ask_what_the_image_asks() -> None:
    [container] = containers(the("Deployment"))
    probes = {name: container[name] for name in container if name.endswith("Probe")}
    assert probes.keys() == {"startupProbe", "readinessProbe", "livenessProbe"}
    for probe in probes.values():
        assert probe["exec"]["command"] == healthcheck()
        assert probe["timeoutSeconds"] >= 10


def test_names_that_documents_have_for_each_other_exist() -> None:
    fleet = the("Deployment")
    pod = fleet["spec"]["template"]
    assert the("PodDisruptionBudget")["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    assert the("HorizontalPodAutoscaler")["spec"]["scaleTargetRef"]["name"] == fleet["metadata"]["name"]
    assert scaled().scale_target_ref.name == fleet["metadata"]["name"]
    secret, settings = the("Secret"), the("ConfigMap")
    asked = [
        one["valueFrom"]["secretKeyRef"]
        for kind in ("Deployment", "Job")
        for c in containers(the(kind))
        for one in c["env"]
    ]
    [login] = the("TriggerAuthentication")["spec"]["secretTargetRef"]
    for one in [*asked, login]:
        assert one["name"] == secret["metadata"]["name"]
        assert one["key"] in secret["stringData"]
    for kind in ("Deployment", "Job"):
        [container] = containers(the(kind))
        assert container["envFrom"] == [{"configMapRef": {"name": settings["metadata"]["name"]}}]
    assert {trigger.authentication_ref.name for trigger in scaled().triggers} == {
        the("TriggerAuthentication")["metadata"]["name"]
    }


def test_both_autoscalers_decide_alike() -> None:
    plain = the("HorizontalPodAutoscaler")["spec"]
    assert (plain["minReplicas"], plain["maxReplicas"]) == (scaled().min_replica_count, scaled().max_replica_count)
    assert plain["behavior"] == scaled().advanced.horizontal_pod_autoscaler_config.behavior
    external = [metric["external"] for metric in plain["metrics"]]
    asked = {
        (one["metric"]["selector"]["matchLabels"]["queue"], one["metric"]["name"]): one["target"] for one in external
    }
    for trigger in scaled().triggers:
        queue, what = trigger.name.split("-")
        metric = {"depth": "aaiclick_queue_task_queue_depth", "age": "aaiclick_queue_oldest_ready_age_seconds"}[what]
        target = asked.pop((queue, metric))
        assert target["type"] == trigger.metric_type
        assert target[re.sub("^A", "a", re.sub("^V", "v", target["type"]))] == trigger.metadata.target_query_value
    assert asked == {}


def test_the_server_is_asked_by_keda_and_found_by_its_service() -> None:
    server, service = the("Deployment", "server.yaml"), the("Service", "server.yaml")
    pod = server["spec"]["template"]
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    asked = msgspec.convert(the("ScaledObject", "keda.yaml"), ServerScaledObject).spec
    [login] = the("TriggerAuthentication", "keda.yaml")["spec"]["secretTargetRef"]
    assert login["key"] in the("Secret")["stringData"]
    groups = read(FLEET, {}).groups
    served = {queue: group.count for group in groups.values() for queue in group.queues or {}}
    assert {trigger.name: int(trigger.metadata.target_value) for trigger in asked.triggers} == served
    for trigger in asked.triggers:
        host = f"http://{service['metadata']['name']}:{service['spec']['ports'][0]['port']}"
        assert trigger.metadata.url == f"{host}/api/v1/queues/{trigger.name}/scale"
        assert trigger.authentication_ref.name == the("TriggerAuthentication", "keda.yaml")["metadata"]["name"]
    assert asked.advanced == scaled().advanced
    [container] = containers(server)
    assert container["livenessProbe"]["httpGet"]["path"] == "/livez"
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert "annotations" not in pod["metadata"]  # Prometheus would come without a token


def test_the_monitor_of_the_server_finds_its_service_and_shows_a_token() -> None:
    service = the("Service", "server.yaml")
    spec = msgspec.convert(the("ServiceMonitor"), ServiceMonitor).spec
    assert spec.selector.match_labels.items() <= service["metadata"]["labels"].items()
    [endpoint] = spec.endpoints
    assert (endpoint.port, endpoint.path) == (service["spec"]["ports"][0]["name"], "/metrics")
    token = endpoint.authorization.credentials
    assert token.name == the("Secret")["metadata"]["name"]
    assert token.key in the("Secret")["stringData"]


def test_the_ports_of_a_pod_are_those_of_its_processes() -> None:
    [container] = containers(the("Deployment"))
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    expected = {
        f"{name}-{number + 1}": (group.probe_port or 0) + number
        for name, group in read(FLEET, {}).groups.items()
        for number in range(group.count)
    }
    assert ports == expected
    annotations = the("Deployment")["spec"]["template"]["metadata"]["annotations"]
    assert int(annotations["prometheus.io/port"]) in ports.values()


def test_no_secret_is_more_than_an_example() -> None:
    for name, text in the("Secret")["stringData"].items():
        assert ":change-me@" in text or text == "change-me", name
    assert "secret.example.yaml" not in kustomization().resources
    assert shown(KUBERNETES / "secret.example.yaml")
