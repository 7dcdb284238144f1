#!/usr/bin/env python3
"""Writes builtin.json and builtin.fields beside this file, from a Go module cache that holds Kubernetes.

    generate.py MODULES VERSION PODS   for instance: generate.py "$(go env GOMODCACHE)" 36.3 37.0

VERSION is the release whose behaviour this server follows. Fields of pods that release PODS has besides are added, so that
nodes see them instead of losing them on the way from a Sandbox.

builtin.json holds the OpenAPI schemas of the built-in kinds and everything they refer to. Descriptions and defaults are
left out: the first for size, the second because they are those of Go's zero values, not of the API. builtin.fields
holds the protobuf field numbers of the same types; src/protobuf.rs says how it is read. A new row in src/kinds.rs needs
its type in ROOTS here.
"""

import json
import pathlib
import re
import sys

CORE = "Binding ComponentStatus ConfigMap Event Namespace Node PersistentVolume PersistentVolumeClaim Pod Secret Service ServiceAccount".split()
ROOTS = [f"io.k8s.api.core.v1.{kind}" for kind in CORE] + [
    "io.k8s.api.apps.v1.DaemonSet",
    "io.k8s.api.apps.v1.Deployment",
    "io.k8s.api.apps.v1.ReplicaSet",
    "io.k8s.api.apps.v1.StatefulSet",
    "io.k8s.api.authentication.v1.SelfSubjectReview",
    "io.k8s.api.authentication.v1.TokenRequest",
    "io.k8s.api.authentication.v1.TokenReview",
    "io.k8s.api.authorization.v1.LocalSubjectAccessReview",
    "io.k8s.api.authorization.v1.SelfSubjectAccessReview",
    "io.k8s.api.authorization.v1.SelfSubjectRulesReview",
    "io.k8s.api.authorization.v1.SubjectAccessReview",
    "io.k8s.api.coordination.v1.Lease",
    "io.k8s.api.discovery.v1.EndpointSlice",
    "io.k8s.api.events.v1.Event",
    "io.k8s.api.networking.v1.NetworkPolicy",
    "io.k8s.api.node.v1.RuntimeClass",
    "io.k8s.api.policy.v1.Eviction",
    "io.k8s.api.policy.v1.PodDisruptionBudget",
    "io.k8s.api.rbac.v1.ClusterRole",
    "io.k8s.api.rbac.v1.ClusterRoleBinding",
    "io.k8s.api.rbac.v1.Role",
    "io.k8s.api.rbac.v1.RoleBinding",
    "io.k8s.api.storage.v1.StorageClass",
    "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions",
]
# Only as JSON: definitions and metadata on its own.
JSON_ROOTS = [
    "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinition",
    "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta",
]
GROUPS = ["api__v1"] + [
    f"apis__{group}__v1"
    for group in (
        "apiextensions.k8s.io",
        "apps",
        "authentication.k8s.io",
        "authorization.k8s.io",
        "coordination.k8s.io",
        "discovery.k8s.io",
        "events.k8s.io",
        "networking.k8s.io",
        "node.k8s.io",
        "policy",
        "rbac.authorization.k8s.io",
        "storage.k8s.io",
    )
]
# What the definitions of sandboxes take from a newer release: this type and everything it refers to.
NEWER_ROOT = "io.k8s.api.core.v1.PodSpec"
# Encoded by hand in src/protobuf.rs.
SPECIAL = {
    "io.k8s.apimachinery.pkg.api.resource.Quantity",
    "io.k8s.apimachinery.pkg.apis.meta.v1.FieldsV1",
    "io.k8s.apimachinery.pkg.apis.meta.v1.MicroTime",
    "io.k8s.apimachinery.pkg.apis.meta.v1.Time",
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString",
}
SCALARS = {"string": "s", "bytes": "b", "bool": "t", "int32": "i", "int64": "i", "double": "d"}


def strip(schema):
    if isinstance(schema, list):
        return [strip(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    out = {}
    for key, value in schema.items():
        if (key == "description" and isinstance(value, str)) or key == "default":
            continue
        if key == "properties" and isinstance(value, dict):
            out[key] = {name: strip(child) for name, child in value.items()}
        elif key == "allOf" and len(value) == 1:
            # A single branch is only there to stand beside a description or a default.
            out.update(strip(value[0]))
        else:
            out[key] = strip(value)
    return out


def references(schema):
    if isinstance(schema, dict):
        if isinstance(schema.get("$ref"), str):
            yield schema["$ref"].rsplit("/", 1)[-1]
        for child in schema.values():
            yield from references(child)
    elif isinstance(schema, list):
        for child in schema:
            yield from references(child)


def reachable(modules, version, groups, roots):
    source = {}
    for group in groups:
        path = modules / f"k8s.io/kubernetes@v1.{version}/api/openapi-spec/v3/{group}_openapi.json"
        source.update(json.loads(path.read_text())["components"]["schemas"])
    found, queue = {}, list(roots)
    while queue:
        name = queue.pop()
        if name in found:
            continue
        found[name] = strip(source[name])
        queue.extend(references(source[name]))
    return found


def schemas(modules, version, pods):
    found = reachable(modules, version, GROUPS, ROOTS + JSON_ROOTS)
    for name, newer in reachable(modules, pods, GROUPS[:1], [NEWER_ROOT]).items():
        known = found.setdefault(name, newer)
        if "properties" in newer:
            known["properties"] = newer["properties"] | known["properties"]
    for schema in found.values():
        # Types that every group has a copy of list all of them here.
        if len(schema.get("x-kubernetes-group-version-kind", [])) > 1:
            del schema["x-kubernetes-group-version-kind"]
    lines = (f"{json.dumps(name)}:{json.dumps(found[name], separators=(',', ':'))}" for name in sorted(found))
    return "{\n" + ",\n".join(lines) + "\n}\n"


def read_messages(modules, version, groups):
    """Per message its fields (label, type, name, number), and per field of a Go struct its type and JSON name."""
    packages = {f"io.k8s.api.{group}.v1": f"api@v0.{version}/{group}/v1" for group in groups.split()}
    packages["io.k8s.apimachinery.pkg.apis.meta.v1"] = f"apimachinery@v0.{version}/pkg/apis/meta/v1"
    messages, structs = {}, {}
    for package, folder in packages.items():
        folder = modules / "k8s.io" / folder
        current = None
        for line in (folder / "generated.proto").read_text().splitlines():
            line = line.split("//")[0].strip()
            if match := re.match(r"message (\w+) \{", line):
                current = messages.setdefault(f"{package}.{match[1]}", [])
            elif line == "}":
                current = None
            elif current is not None and (
                match := re.match(r"(optional|repeated|required)?\s*(map<.*?>|[\w.]+) (\w+) = (\d+)", line)
            ):
                current.append((match[1], match[2], match[3], int(match[4])))
        current = None
        for line in (folder / "types.go").read_text().splitlines():
            if match := re.match(r"type (\w+) struct", line):
                current = f"{package}.{match[1]}"
            elif line.startswith("}"):
                current = None
            elif current and (
                match := re.match(r'\s+(?:\w+\s+)?(\*?[\w.\[\]*]+)\s+`json:"([^",]*)[^`]*protobuf:"\w+,(\d+)', line)
            ):
                structs[current, int(match[3])] = (match[1], match[2])
    return messages, structs


def encoded(modules, version, groups, roots):
    messages, structs = read_messages(modules, version, groups)
    found, queue = {}, list(roots)
    while queue:
        message = queue.pop()
        if message in found or message in SPECIAL:
            continue
        package = message.rsplit(".", 1)[0]
        found[message] = {}
        for label, type_, name, number in messages[message]:
            go_type, json_name = structs.get((message, number), ("", name))
            flags = "r" * (label == "repeated") + "p" * go_type.startswith("*") + "n" * (not json_name)
            if match := re.match(r"map<string, (.*)>", type_):
                flags, type_ = flags + "m", match[1]
            if type_ not in SCALARS:
                absolute = type_.startswith(".")
                type_ = type_[1:].replace("k8s.io.", "io.k8s.", 1) if absolute else f"{package}.{type_}"
                queue.append(type_)
            line = f"  {number} {json_name or name} {flags or '-'} {SCALARS.get(type_, type_)}\n"
            found[message][number] = line
    return found


def fields(modules, version, pods):
    groups = "apps authentication authorization core coordination discovery events networking node policy rbac storage"
    found = encoded(modules, version, groups, ROOTS)
    for message, newer in encoded(modules, pods, "core", [NEWER_ROOT]).items():
        found[message] = newer | found.get(message, {})
    return "".join(f"{message}\n{''.join(found[message].values())}" for message in sorted(found))


def main():
    modules, versions = pathlib.Path(sys.argv[1]), sys.argv[2:4]
    here = pathlib.Path(__file__).parent
    (here / "builtin.json").write_text(schemas(modules, *versions))
    (here / "builtin.fields").write_text(fields(modules, *versions))


main()
