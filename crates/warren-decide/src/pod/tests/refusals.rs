//! Tests pods that cannot run, and missing images.

use super::*;

#[test]
fn pods_that_cannot_be_run_as_asked_fail_with_the_field_named() {
    let with = |container: Value| {
        let mut whole = json!({"name": "main", "image": "warren.dev/host"});
        for (key, value) in container.as_object().unwrap() {
            whole[key] = value.clone();
        }
        json!({"containers": [whole]})
    };
    let cases = [
        json!({"hostNetwork": true}),
        json!({"runtimeClassName": "gvisor"}),
        json!({"runtimeClassName": "strong", "containers": [{"name": "one"}, {"name": "two"}]}),
        json!({"initContainers": [{"name": "first", "securityContext": {"privileged": true}}]}),
        json!({"volumes": [{"name": "host", "hostPath": {"path": "/etc"}}]}),
        json!({"volumes": [{"name": "far", "nfs": {"server": "x", "path": "/"}}]}),
        json!({"volumes": [{"name": "odd"}]}),
        with(json!({"securityContext": {"privileged": true}})),
        with(json!({"securityContext": {"capabilities": {"add": ["NET_ADMIN"]}}})),
        with(json!({"restartPolicy": "Always"})),
        with(json!({"livenessProbe": {"httpGet": {"port": 1, "scheme": "HTTPS"}}})),
        with(json!({"volumeMounts": [{"name": "gone", "mountPath": "/data"}]})),
        with(json!({"resources": {"limits": {"memory": "1Mi"}}})),
        with(json!({"resources": {"limits": {"memory": "lots"}}})),
        with(json!({"resources": {"limits": {"ephemeral-storage": "0"}}})),
        with(json!({"resources": {"limits": {"hugepages-2Mi": "2Mi"}}})),
        json!({"volumes": [{"name": "tmp", "emptyDir": {"sizeLimit": "much"}}]}),
        json!({"volumes": [{"name": "huge", "emptyDir": {"medium": "HugePages"}}]}),
    ];
    let shown: Vec<String> = cases
        .into_iter()
        .map(|spec| {
            let status = plan(&pod(spec), &Machine::Absent, None, 0).status.unwrap();
            assert_eq!(status.phase.as_deref(), Some("Failed"));
            format!("{} | {}", status.reason.unwrap(), status.message.unwrap())
        })
        .collect();
    expect![[r#"
        IsolationRefused | Pod was rejected: spec.hostNetwork would weaken the isolation of the pod, which this node does not allow
        RuntimeClassNotFound | Pod was rejected: runtime class "gvisor" is not available on this node
        UnsupportedPodSpec | Pod was rejected: runtime class "strong" runs one container of a pod at a time, and the pod has 2 beside each other
        IsolationRefused | Pod was rejected: spec.initContainers[first].securityContext.privileged would weaken the isolation of the pod, which this node does not allow
        UnsupportedVolume | Pod was rejected: volume "host": hostPath `/etc` would show the pod files of the host, which this node does not allow; `warren up --allow-host-path` does
        UnsupportedVolume | Pod was rejected: volume "far": nfs is not supported by this node yet; emptyDir, configMap, secret, downwardAPI, projected and persistentVolumeClaim are
        UnsupportedVolume | Pod was rejected: volume "odd": unknown is not supported by this node yet; emptyDir, configMap, secret, downwardAPI, projected and persistentVolumeClaim are
        IsolationRefused | Pod was rejected: spec.containers[main].securityContext.privileged would weaken the isolation of the pod, which this node does not allow
        IsolationRefused | Pod was rejected: spec.containers[main].securityContext.capabilities.add NET_ADMIN would weaken the isolation of the pod, which this node does not allow
        UnsupportedPodSpec | Pod was rejected: spec.containers[main].restartPolicy is not supported by this node yet
        UnsupportedPodSpec | Pod was rejected: spec.containers[main].livenessProbe.httpGet.scheme HTTPS is not supported by this node yet
        InvalidVolumeMount | Pod was rejected: spec.containers[main].volumeMounts: there is no volume "gone"
        InvalidLimits | Pod was rejected: spec.containers[main].resources.limits.memory: 1Mi is below the least that can be enforced, 4Mi
        InvalidLimits | Pod was rejected: spec.containers[main].resources.limits.memory: `lots` is not a quantity
        InvalidLimits | Pod was rejected: spec.containers[main].resources.limits.ephemeral-storage: 0 is below the least that can be enforced, 1
        InvalidLimits | Pod was rejected: spec.containers[main].resources.limits.hugepages-2Mi is not supported by this node yet
        UnsupportedVolume | Pod was rejected: volume "tmp": emptyDir.sizeLimit: `much` is not a quantity
        UnsupportedVolume | Pod was rejected: volume "huge": emptyDir.medium `HugePages` is not supported by this node yet"#]].assert_eq(&shown.join("\n"));
}

#[test]
fn what_an_ordinary_user_cannot_give_is_refused_by_name() {
    let ordinary = NodeFacts {
        network: Networks::Proxy,
        limits_are_enforced: false,
        ids: 1,
        ids_are_own: false,
        ..node()
    };
    let container = |more: Value| {
        let mut whole = json!({"name": "main", "image": "warren.dev/host"});
        for (key, value) in more.as_object().unwrap() {
            whole[key] = value.clone();
        }
        pod(json!({"containers": [whole]}))
    };
    let network = |mode: &str| {
        let mut pod = pod(json!({}));
        pod.metadata.annotations = Some([("warren.dev/network".to_owned(), mode.to_owned())].into());
        pod
    };
    let cases = [
        container(json!({"resources": {"limits": {"memory": "1Gi"}}})),
        container(json!({"resources": {"limits": {"cpu": "1"}}})),
        container(json!({"resources": {"requests": {"memory": "1Gi"}}})),
        container(json!({"securityContext": {"runAsUser": 0}})),
        container(json!({"securityContext": {"runAsUser": 1000}})),
        network("full"),
        network("restricted"),
        network("none"),
    ];
    let shown: Vec<String> = cases
        .iter()
        .map(|pod| {
            let problem = || {
                container_problem(
                    pod,
                    &pod.spec.as_ref().unwrap().containers[0],
                    &ordinary,
                    &Sources::default(),
                )
                .err()
                .flatten()
                .map(|problem| format!("{} | {}", problem.reason, problem.message))
            };
            let refused = refusal(pod, &ordinary).map(|it| format!("{} | {}", it.reason, it.message));
            refused.or_else(problem).unwrap_or_else(|| "fine".to_owned())
        })
        .collect();
    expect![[r#"
        LimitsNotEnforceable | spec.containers[main].resources.limits.memory cannot be enforced: the user who runs this node was given no cgroups
        LimitsNotEnforceable | spec.containers[main].resources.limits.cpu cannot be enforced: the user who runs this node was given no cgroups
        fine
        fine
        CreateContainerConfigError | runAsUser 1000: the only id in a pod of this node is 0, for the user who runs it has no further ones (see `/etc/subuid`, `/etc/subgid` and `newuidmap`)
        NetworkNotAvailable | the pod asks for `full`, and the home of an ordinary user can give pods only the egress proxy (`restricted`)
        fine
        fine"#]].assert_eq(&shown.join("\n"));
}

/// Returns the next step for a container on an image, and its status, for this state of the image.
fn on_image(container: Value, state: Option<ImageState>, now: i64) -> String {
    let mut whole = json!({"name": "main", "image": "tool:1", "imagePullPolicy": "IfNotPresent"});
    for (key, value) in container.as_object().unwrap() {
        whole[key] = value.clone();
    }
    let images: Images = state.map(|state| ("tool:1".to_owned(), state)).into_iter().collect();
    let plan = plan_with(&pod(json!({"containers": [whole]})), &Machine::Absent, &images, None, now);
    let steps: Vec<String> = plan.steps.iter().map(|step| format!("{step:?}")).collect();
    let again = plan.look_again.map(|again| format!(", again at {}", again.as_second() - at(0).as_second()));
    let waiting = plan.status.unwrap().container_statuses.unwrap().remove(0).state.unwrap().waiting.unwrap();
    let said = [waiting.reason, waiting.message].into_iter().flatten().collect::<Vec<_>>().join(": ");
    format!("[{}]{} {said}", steps.join(", "), again.unwrap_or_default())
}

#[test]
fn a_container_waits_for_its_image() {
    let present = |user: &str| {
        Some(ImageState::Present(ImageFacts { id: "tool@sha256:0".to_owned(), user: user.to_owned() }))
    };
    let failed = |attempts| {
        let message = "no such tool".to_owned();
        Some(ImageState::Failed { reason: "ErrImagePull", message, attempts, at: at(0) })
    };
    let careful = json!({"securityContext": {"runAsNonRoot": true}});
    let shown = [
        on_image(json!({}), None, 0),
        on_image(json!({}), Some(ImageState::Fetching), 0),
        on_image(json!({}), failed(1), 1),
        on_image(json!({}), failed(1), 2),
        on_image(json!({}), failed(2), 5),
        on_image(json!({}), failed(2), 1000),
        on_image(json!({}), present(""), 0),
        on_image(careful.clone(), present(""), 0),
        on_image(careful.clone(), present("0:5"), 0),
        on_image(careful.clone(), present("web"), 0),
        on_image(careful, present("33"), 0),
    ];
    expect![[r#"
        [FetchImage { name: "tool:1", policy: IfNotPresent }] ContainerCreating
        [] ContainerCreating
        [], again at 2 ErrImagePull: no such tool
        [], again at 10 ImagePullBackOff: Back-off pulling image "tool:1": ErrImagePull: no such tool
        [], again at 20 ImagePullBackOff: Back-off pulling image "tool:1": ErrImagePull: no such tool
        [FetchImage { name: "tool:1", policy: IfNotPresent }] ContainerCreating
        [StartSandbox, StartContainer { name: "main", attempt: 0 }] ContainerCreating
        [] CreateContainerConfigError: container has runAsNonRoot and image will run as root
        [] CreateContainerConfigError: container has runAsNonRoot and image will run as root
        [] CreateContainerConfigError: container has runAsNonRoot and image has non-numeric user (web), cannot verify user is non-root
        [StartSandbox, StartContainer { name: "main", attempt: 0 }] ContainerCreating"#]].assert_eq(&shown.join("\n"));
}

#[test]
fn names_that_are_no_images_make_the_container_wait() {
    let image = |name: &str| pod(json!({"containers": [{"name": "main", "image": name}]}));
    let reasons: Vec<String> =
        ["warren.dev/host:latest", "warren.dev/nothing", "Not An Image", "host:5000/a/b@sha256:00", ""]
            .iter()
            .map(|name| {
                match container_problem(
                    &image(name),
                    &image(name).spec.unwrap().containers[0],
                    &node(),
                    &Sources::default(),
                ) {
                    Ok(()) | Err(None) => format!("{name}: fine"),
                    Err(Some(problem)) => format!("{name}: {} | {}", problem.reason, problem.message),
                }
            })
            .collect();
    expect![[r#"
        warren.dev/host:latest: fine
        warren.dev/nothing: ErrImagePull | there is no built-in image "warren.dev/nothing"; the only one is "warren.dev/host"
        Not An Image: InvalidImageName | failed to apply default image tag "Not An Image": couldn't parse image name "Not An Image"
        host:5000/a/b@sha256:00: InvalidImageName | failed to apply default image tag "host:5000/a/b@sha256:00": couldn't parse image name "host:5000/a/b@sha256:00"
        : InvalidImageName | failed to apply default image tag "": couldn't parse image name """#]].assert_eq(&reasons.join("\n"));
}

#[test]
fn settings_that_cannot_be_had_make_the_container_wait() {
    let cases = [
        json!({"securityContext": {"runAsNonRoot": true}}),
        json!({"securityContext": {"runAsNonRoot": true, "runAsUser": 0}}),
        json!({"securityContext": {"runAsUser": 65536}}),
        json!({"env": [{"name": "X", "valueFrom": {"fieldRef": {"fieldPath": "spec.secrets"}}}]}),
    ];
    let shown: Vec<String> = cases
        .into_iter()
        .map(|mut container| {
            container["name"] = "main".into();
            container["image"] = "warren.dev/host".into();
            let plan = plan(&pod(json!({"containers": [container]})), &Machine::Absent, None, 0);
            assert_eq!(plan.steps, []);
            let state = plan.status.unwrap().container_statuses.unwrap().remove(0).state.unwrap();
            let waiting = state.waiting.unwrap();
            format!("{} | {}", waiting.reason.unwrap(), waiting.message.unwrap())
        })
        .collect();
    expect![[r#"
        CreateContainerConfigError | container has runAsNonRoot and image will run as root
        CreateContainerConfigError | container's runAsUser breaks non-root policy
        CreateContainerConfigError | runAsUser 65536 is outside the ids that a pod has, 0 to 65535
        CreateContainerConfigError | env[X]: fieldPath `spec.secrets` is not supported"#]]
    .assert_eq(&shown.join("\n"));
}
