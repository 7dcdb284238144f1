"""What the published Python client does with a cluster, as a transcript: one line for each thing seen.

Run with the path of a kubeconfig. Nothing here knows which server it talks to.
"""

import json
import sys
import threading

from kubernetes import client, config, dynamic, watch
from kubernetes.client.rest import ApiException

NAMESPACE = "python-client"


def say(what, *values):
    print(what, json.dumps(values, sort_keys=True, default=str), flush=True)


def refused(what, call):
    try:
        call()
        say(what, "not refused")
    except (ApiException, dynamic.exceptions.DynamicApiError) as error:
        body = json.loads(error.body)
        say(what, error.status, body.get("reason"), body.get("message"), body.get("details"))


def crud(core):
    core.create_namespace({"metadata": {"name": NAMESPACE}})
    body = client.V1ConfigMap(
        metadata=client.V1ObjectMeta(name="one", labels={"app": "py"}), data={"a": "1"}
    )
    made = core.create_namespaced_config_map(NAMESPACE, body)
    say("created", made.metadata.name, made.data, made.metadata.labels)
    refused("created again", lambda: core.create_namespaced_config_map(NAMESPACE, body))
    read = core.read_namespaced_config_map("one", NAMESPACE)
    say("read", read.data, read.metadata.resource_version == made.metadata.resource_version)
    read.data["b"] = "2"
    replaced = core.replace_namespaced_config_map("one", NAMESPACE, read)
    say("replaced", replaced.data, replaced.metadata.resource_version != made.metadata.resource_version)
    refused("replaced a stale one", lambda: core.replace_namespaced_config_map("one", NAMESPACE, read))
    patched = core.patch_namespaced_config_map("one", NAMESPACE, {"data": {"a": None, "c": "3"}})
    say("patched", patched.data)
    for name in ("two", "three"):
        core.create_namespaced_config_map(NAMESPACE, {"metadata": {"name": name}, "data": {}})
    names = lambda **options: [
        item.metadata.name for item in core.list_namespaced_config_map(NAMESPACE, **options).items
        if item.metadata.name != "kube-root-ca.crt"
    ]
    say("listed", names(), names(label_selector="app=py"), names(field_selector="metadata.name=two"))
    refused("listed by nonsense", lambda: core.list_namespaced_config_map(NAMESPACE, label_selector="a in"))
    refused("read what is not there", lambda: core.read_namespaced_config_map("none", NAMESPACE))
    gone = core.delete_namespaced_config_map("three", NAMESPACE)
    say("deleted", gone.status, gone.details.name, gone.details.kind)
    refused("a bad name", lambda: core.create_namespaced_config_map(NAMESPACE, {"metadata": {"name": "Not_A_Name"}}))
    secret = core.create_namespaced_secret(
        NAMESPACE, client.V1Secret(metadata=client.V1ObjectMeta(generate_name="s-"), string_data={"k": "v"})
    )
    say("secret", secret.data, secret.metadata.name.startswith("s-"), secret.type)
    while True:
        try:
            # A controller makes it, a moment after the namespace.
            core.read_namespaced_service_account("default", NAMESPACE)
            break
        except ApiException as error:
            if error.status != 404:
                raise
    pod = core.create_namespaced_pod(NAMESPACE, {
        "metadata": {"name": "pod"},
        "spec": {"schedulerName": "nobody", "containers": [{"name": "main", "image": "busybox"}]},
    })
    say("pod", pod.status.phase, pod.spec.restart_policy, pod.spec.containers[0].image_pull_policy)
    core.delete_namespaced_pod("pod", NAMESPACE, grace_period_seconds=0)


def watching(core):
    version = core.list_namespaced_config_map(NAMESPACE).metadata.resource_version
    def write():
        core.create_namespaced_config_map(NAMESPACE, {"metadata": {"name": "watched"}, "data": {"n": "0"}})
        core.patch_namespaced_config_map("watched", NAMESPACE, {"data": {"n": "1"}})
        core.delete_namespaced_config_map("watched", NAMESPACE)
    writer = threading.Thread(target=write)
    writer.start()
    events = watch.Watch()
    stream = events.stream(
        core.list_namespaced_config_map, NAMESPACE, resource_version=version, timeout_seconds=60,
        field_selector="metadata.name=watched",
    )
    for number, event in enumerate(stream):
        say("event", event["type"], event["object"].metadata.name, event["object"].data)
        if number == 2:
            events.stop()
    writer.join()
    refused("watch from long ago", lambda: list(
        watch.Watch().stream(core.list_namespaced_config_map, NAMESPACE, resource_version="x", timeout_seconds=5)
    ))


def definitions(extensions, custom, api):
    schema = {"type": "object", "properties": {"spec": {"type": "object", "properties": {
        "size": {"type": "integer", "minimum": 1, "default": 3}, "mode": {"type": "string", "enum": ["a", "b"]},
    }}}}
    extensions.create_custom_resource_definition({
        "metadata": {"name": "widgets.python.example"},
        "spec": {
            "group": "python.example", "scope": "Namespaced",
            "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
            "versions": [{"name": "v1", "served": True, "storage": True, "subresources": {"status": {}},
                          "schema": {"openAPIV3Schema": schema}}],
        },
    })
    for event in watch.Watch().stream(
        extensions.list_custom_resource_definition, field_selector="metadata.name=widgets.python.example", timeout_seconds=60
    ):
        conditions = event["object"].status.conditions or [] if event["object"].status else []
        if any(one.type == "Established" and one.status == "True" for one in conditions):
            break
    where = ("python.example", "v1", NAMESPACE, "widgets")
    widget = {"apiVersion": "python.example/v1", "kind": "Widget", "metadata": {"name": "w"}, "spec": {"mode": "a"}}
    made = None
    while made is None:
        try:
            made = custom.create_namespaced_custom_object(*where, widget)
        except ApiException as error:
            # A real server serves a new definition a moment after it says so.
            if error.status != 404:
                raise
    say("custom", made["spec"])
    refused("custom, too small", lambda: custom.patch_namespaced_custom_object(*where, "w", {"spec": {"size": 0}}))

    # The dynamic client finds its way by discovery alone.
    found = dynamic.DynamicClient(api).resources.get(api_version="python.example/v1", kind="Widget")
    say("discovered", found.group_version, found.name, found.namespaced, sorted(found.verbs))
    say("dynamic get", found.get(name="w", namespace=NAMESPACE).spec.to_dict())
    patched = found.patch(
        body={"spec": {"mode": "b"}}, name="w", namespace=NAMESPACE, content_type="application/merge-patch+json"
    )
    say("dynamic patch", patched.spec.to_dict())
    wanted = {"apiVersion": "python.example/v1", "kind": "Widget", "metadata": {"name": "w"}, "spec": {"size": 7}}
    apply = lambda **options: found.server_side_apply(
        body=wanted, name="w", namespace=NAMESPACE, field_manager="py", **options
    )
    refused("dynamic apply of what another owns", apply)
    applied = apply(force_conflicts=True)
    say("dynamic apply", applied.spec.to_dict())
    say("dynamic list", [item.metadata.name for item in found.get(namespace=NAMESPACE).items])
    for event in found.watch(namespace=NAMESPACE, timeout=60):
        say("dynamic event", event["type"], event["object"].spec.to_dict())
        break
    found.delete(name="w", namespace=NAMESPACE)
    try:
        found.get(name="w", namespace=NAMESPACE)
        say("dynamic get after delete", "found")
    except dynamic.exceptions.NotFoundError as error:
        say("dynamic get after delete", error.status)
    extensions.delete_custom_resource_definition("widgets.python.example")


def access(api):
    review = client.AuthorizationV1Api(api).create_self_subject_access_review({
        "spec": {"resourceAttributes": {"verb": "create", "resource": "pods", "namespace": NAMESPACE}},
    })
    say("may create pods", review.status.allowed)
    core = client.CoreV1Api(api)
    token = core.create_namespaced_service_account_token("default", NAMESPACE, {"spec": {"expirationSeconds": 3600}})
    say("token", token.status.token.count("."))
    stranger = client.Configuration()
    stranger.host, stranger.ssl_ca_cert = api.configuration.host, api.configuration.ssl_ca_cert
    stranger.api_key = {"authorization": "Bearer " + token.status.token}
    with client.ApiClient(stranger) as limited:
        refused("as a service account", lambda: client.CoreV1Api(limited).list_namespaced_secret(NAMESPACE))


def main():
    config.load_kube_config(sys.argv[1])
    with client.ApiClient() as api:
        core = client.CoreV1Api(api)
        say("version", client.VersionApi(api).get_code().major)
        crud(core)
        watching(core)
        definitions(client.ApiextensionsV1Api(api), client.CustomObjectsApi(api), api)
        access(api)
        core.delete_namespace(NAMESPACE)
        say("end")


main()
