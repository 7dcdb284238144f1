//! The kinds of `apps/v1`: Deployments, ReplicaSets, StatefulSets and DaemonSets, with
//! kube-apiserver's defaults and validation. This server has no controllers for them. Their status
//! says so until a controller writes another one.

use serde_json::{Map, Value, json};

use super::network::validate_selector;
use super::{Behaviour, NameRule, PLAIN, child, pods_defaults, pods_validation, set_default, volumes};
use crate::label_selector;
use crate::metadata::{LABEL_RULE, is_dns_label, metadata_mut, validate_labels};
use crate::status::FieldError;

pub(super) static DEPLOYMENT: Behaviour = Behaviour {
    default: |object| with_spec(object, default_deployment),
    prepare_create: |object| begin(object, deployment_status),
    // Annotations are copied to replica sets, so changing them increments the generation too.
    prepare_update: |new, old| go_on(new, old, true, deployment_status),
    validate: validate_deployment,
    validate_update: validate_same_selector,
    ..PLAIN
};

pub(super) static REPLICA_SET: Behaviour = Behaviour {
    default: |object| with_spec(object, |spec| set_default(spec, "replicas", 1)),
    prepare_create: |object| begin(object, replica_set_status),
    prepare_update: |new, old| go_on(new, old, false, replica_set_status),
    validate: validate_replica_set,
    validate_update: validate_same_selector,
    ..PLAIN
};

pub(super) static STATEFUL_SET: Behaviour = Behaviour {
    default: |object| with_spec(object, default_stateful_set),
    prepare_create: |object| begin(object, stateful_set_status),
    prepare_update: |new, old| go_on(new, old, false, stateful_set_status),
    validate: validate_stateful_set,
    validate_update: validate_stateful_set_update,
    name: NameRule::Label,
    ..PLAIN
};

pub(super) static DAEMON_SET: Behaviour = Behaviour {
    default: |object| with_spec(object, default_daemon_set),
    prepare_create: |object| begin(object, daemon_set_status),
    prepare_update: |new, old| go_on(new, old, false, daemon_set_status),
    validate: validate_daemon_set,
    validate_update: validate_same_selector,
    ..PLAIN
};

/// The condition reason that marks a status as written by this server and not by a controller.
const NO_CONTROLLER: &str = "NoController";

fn with_spec(object: &mut Value, default: impl Fn(&mut Map<String, Value>)) {
    let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) else { return };
    default(spec);
    if let Some(template) = child(spec, "template").and_then(|template| child(template, "spec")) {
        pods_defaults::default_spec(template);
    }
}

fn default_deployment(spec: &mut Map<String, Value>) {
    set_default(spec, "replicas", 1);
    set_default(spec, "revisionHistoryLimit", 10);
    set_default(spec, "progressDeadlineSeconds", 600);
    let Some(strategy) = child(spec, "strategy") else { return };
    set_default(strategy, "type", "RollingUpdate");
    if strategy["type"] == "RollingUpdate"
        && let Some(rolling) = child(strategy, "rollingUpdate")
    {
        set_default(rolling, "maxUnavailable", "25%");
        set_default(rolling, "maxSurge", "25%");
    }
}

fn default_stateful_set(spec: &mut Map<String, Value>) {
    set_default(spec, "replicas", 1);
    set_default(spec, "revisionHistoryLimit", 10);
    set_default(spec, "podManagementPolicy", "OrderedReady");
    if let Some(policy) = child(spec, "persistentVolumeClaimRetentionPolicy") {
        set_default(policy, "whenDeleted", "Retain");
        set_default(policy, "whenScaled", "Retain");
    }
    if let Some(strategy) = child(spec, "updateStrategy") {
        if !strategy.contains_key("type") {
            strategy.insert("type".to_owned(), "RollingUpdate".into());
            set_default(strategy, "rollingUpdate", Map::new());
        }
        if strategy["type"] == "RollingUpdate"
            && let Some(rolling) = strategy.get_mut("rollingUpdate").and_then(Value::as_object_mut)
        {
            set_default(rolling, "partition", 0);
        }
    }
    let claims = spec.get_mut("volumeClaimTemplates").and_then(Value::as_array_mut);
    for claim in claims.into_iter().flatten() {
        (volumes::CLAIM.default)(claim);
        if let Some(claim) = claim.as_object_mut() {
            set_default(claim, "kind", "PersistentVolumeClaim");
            set_default(claim, "apiVersion", "v1");
            set_default(claim, "status", json!({"phase": "Pending"}));
        }
    }
}

fn default_daemon_set(spec: &mut Map<String, Value>) {
    set_default(spec, "revisionHistoryLimit", 10);
    let Some(strategy) = child(spec, "updateStrategy") else { return };
    set_default(strategy, "type", "RollingUpdate");
    if strategy["type"] == "RollingUpdate"
        && let Some(rolling) = child(strategy, "rollingUpdate")
    {
        set_default(rolling, "maxUnavailable", 1);
        set_default(rolling, "maxSurge", 0);
    }
}

/// Builds the status of an object, given a timestamp.
type StatusOf = fn(&Value, &Value) -> Value;

/// Prepares a new object.
fn begin(object: &mut Value, status: StatusOf) {
    metadata_mut(object).insert("generation".to_owned(), 1.into());
    let now = object["metadata"]["creationTimestamp"].clone();
    object["status"] = status(object, &now);
}

/// Increments the generation if the spec changed. Updates the status unless a controller has
/// written it.
fn go_on(new: &mut Value, old: &Value, annotations_count: bool, status: StatusOf) {
    let annotations = |object: &Value| object["metadata"]["annotations"].clone();
    if new["spec"] != old["spec"] || (annotations_count && annotations(new) != annotations(old)) {
        let generation = old["metadata"]["generation"].as_i64().unwrap_or(0);
        metadata_mut(new).insert("generation".to_owned(), (generation + 1).into());
    }
    let conditions = old["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    if let Some(condition) = conditions.iter().find(|condition| condition["reason"] == NO_CONTROLLER) {
        new["status"] = status(new, &condition["lastTransitionTime"]);
    }
}

fn message(kind: &str) -> String {
    format!(
        "nothing runs {kind} here: this server only keeps them. Create a Pod or a Sandbox instead, or apply this to a cluster"
    )
}

/// Builds a status that makes `kubectl rollout status` fail instead of wait: that needs the reason
/// `ProgressDeadlineExceeded` and the newest generation.
fn deployment_status(deployment: &Value, since: &Value) -> Value {
    let condition = |type_: &str, reason: &str| {
        json!({
            "type": type_, "status": "False", "reason": reason, "message": message("Deployments"),
            "lastUpdateTime": since, "lastTransitionTime": since,
        })
    };
    let mut status = json!({
        "observedGeneration": deployment["metadata"]["generation"],
        "conditions": [
            condition("Available", NO_CONTROLLER),
            condition("Progressing", "ProgressDeadlineExceeded"),
        ],
    });
    if let Some(wanted) = deployment["spec"]["replicas"].as_i64().filter(|wanted| *wanted > 0) {
        status["unavailableReplicas"] = wanted.into();
    }
    status
}

fn replica_set_status(set: &Value, since: &Value) -> Value {
    json!({
        "replicas": 0,
        "observedGeneration": set["metadata"]["generation"],
        "conditions": [condition("ReplicaFailure", "True", "ReplicaSets", since)],
    })
}

/// Builds a status without `observedGeneration`: with it, clients would assume that the pods are
/// about to start.
fn stateful_set_status(_: &Value, since: &Value) -> Value {
    let conditions = [condition("Available", "False", "StatefulSets", since)];
    json!({"replicas": 0, "availableReplicas": 0, "conditions": conditions})
}

/// Builds a status without `observedGeneration`: with it, a set without pods would count as rolled
/// out.
fn daemon_set_status(_: &Value, since: &Value) -> Value {
    json!({
        "currentNumberScheduled": 0,
        "numberMisscheduled": 0,
        "desiredNumberScheduled": 0,
        "numberReady": 0,
        "conditions": [condition("Available", "False", "DaemonSets", since)],
    })
}

fn condition(type_: &str, status: &str, kind: &str, since: &Value) -> Value {
    json!({
        "type": type_, "status": status, "reason": NO_CONTROLLER, "message": message(kind),
        "lastTransitionTime": since,
    })
}

fn validate_deployment(deployment: &Value, errors: &mut Vec<FieldError>) {
    let spec = &deployment["spec"];
    not_negative(spec, "replicas", "spec", errors);
    validate_template(spec, "ReplicaSet", "deployment", &[], errors);
    validate_deployment_strategy(&spec["strategy"], errors);
    for field in ["minReadySeconds", "revisionHistoryLimit", "progressDeadlineSeconds"] {
        not_negative(spec, field, "spec", errors);
    }
    if let Some(deadline) = spec["progressDeadlineSeconds"].as_i64()
        && deadline <= spec["minReadySeconds"].as_i64().unwrap_or(0)
    {
        let detail = "must be greater than minReadySeconds";
        errors.push(FieldError::invalid("spec.progressDeadlineSeconds", deadline, detail));
    }
    validate_counts(
        &deployment["status"],
        &["updatedReplicas", "readyReplicas", "availableReplicas"],
        "cannot be greater than readyReplicas",
        errors,
    );
}

fn validate_deployment_strategy(strategy: &Value, errors: &mut Vec<FieldError>) {
    let rolling = &strategy["rollingUpdate"];
    match strategy["type"].as_str().unwrap_or_default() {
        "Recreate" if rolling.is_object() => {
            let detail = "may not be specified when strategy `type` is 'Recreate'";
            errors.push(FieldError::forbidden("spec.strategy.rollingUpdate", detail));
        }
        "Recreate" => {}
        "RollingUpdate" => {
            let field = "spec.strategy.rollingUpdate.maxUnavailable";
            let unavailable = validate_share(&rolling["maxUnavailable"], field, errors);
            let surge = validate_share(&rolling["maxSurge"], "spec.strategy.rollingUpdate.maxSurge", errors);
            if unavailable == 0 && surge == 0 {
                let detail = "may not be 0 when `maxSurge` is 0";
                errors.push(FieldError::invalid(field, rolling["maxUnavailable"].clone(), detail));
            }
            at_most_all(&rolling["maxUnavailable"], field, errors);
        }
        _ => errors.push(FieldError::unsupported(
            "spec.strategy",
            strategy.clone(),
            &["Recreate", "RollingUpdate"],
        )),
    }
}

fn validate_replica_set(set: &Value, errors: &mut Vec<FieldError>) {
    let spec = &set["spec"];
    not_negative(spec, "replicas", "spec", errors);
    not_negative(spec, "minReadySeconds", "spec", errors);
    // kube-apiserver says deployment here too.
    validate_template(spec, "ReplicaSet", "deployment", &[], errors);
    validate_counts(
        &set["status"],
        &["fullyLabeledReplicas", "readyReplicas", "availableReplicas"],
        "cannot be greater than readyReplicas",
        errors,
    );
}

fn validate_stateful_set(set: &Value, errors: &mut Vec<FieldError>) {
    let spec = &set["spec"];
    let policy = spec["podManagementPolicy"].as_str().unwrap_or_default();
    if !matches!(policy, "OrderedReady" | "Parallel") {
        let detail = "must be 'OrderedReady' or 'Parallel'";
        errors.push(FieldError::invalid("spec.podManagementPolicy", policy, detail));
    }
    let (strategy, rolling) = (&spec["updateStrategy"], &spec["updateStrategy"]["rollingUpdate"]);
    match strategy["type"].as_str().unwrap_or_default() {
        "OnDelete" if rolling.is_object() => {
            let detail = "only allowed for updateStrategy 'RollingUpdate'";
            let field = "spec.updateStrategy.rollingUpdate";
            errors.push(FieldError::invalid(field, rolling.clone(), detail));
        }
        "OnDelete" => {}
        "RollingUpdate" => {
            not_negative(rolling, "partition", "spec.updateStrategy.rollingUpdate", errors);
            if rolling.get("maxUnavailable").is_some() {
                let field = "spec.updateStrategy.rollingUpdate.maxUnavailable";
                if validate_share(&rolling["maxUnavailable"], field, errors) == 0 {
                    let value = rolling["maxUnavailable"].clone();
                    errors.push(FieldError::invalid(field, value, "cannot be 0"));
                }
                at_most_all(&rolling["maxUnavailable"], field, errors);
            }
        }
        _ => {
            let detail = "must be 'RollingUpdate' or 'OnDelete'";
            errors.push(FieldError::invalid("spec.updateStrategy", strategy.clone(), detail));
        }
    }
    for field in ["whenDeleted", "whenScaled"] {
        let policy = spec["persistentVolumeClaimRetentionPolicy"][field].as_str().unwrap_or_default();
        if !matches!(policy, "Retain" | "Delete") {
            let field = format!("spec.persistentVolumeClaimRetentionPolicy.{field}");
            errors.push(FieldError::unsupported(field, policy, &["Retain", "Delete"]));
        }
    }
    let claims = spec["volumeClaimTemplates"].as_array().map(Vec::as_slice).unwrap_or_default();
    for (index, claim) in claims.iter().enumerate() {
        let path = format!("spec.volumeClaimTemplates[{index}].spec");
        volumes::validate_claim_spec(&claim["spec"], &path, errors);
    }
    not_negative(spec, "replicas", "spec", errors);
    not_negative(spec, "minReadySeconds", "spec", errors);
    not_negative(&spec["ordinals"], "start", "spec.ordinals", errors);
    if let Some(service) = spec["serviceName"].as_str().filter(|service| !service.is_empty())
        && !is_dns_label(service)
    {
        errors.push(FieldError::invalid("spec.serviceName", service, LABEL_RULE));
    }
    let names: Vec<&str> = claims.iter().filter_map(|claim| claim["metadata"]["name"].as_str()).collect();
    validate_template(spec, "StatefulSet", "statefulset", &names, errors);
    validate_counts(
        &set["status"],
        &["readyReplicas", "currentReplicas", "updatedReplicas", "availableReplicas"],
        "cannot be greater than status.readyReplicas",
        errors,
    );
}

fn validate_daemon_set(set: &Value, errors: &mut Vec<FieldError>) {
    let spec = &set["spec"];
    validate_template(spec, "DaemonSet", "daemonset", &[], errors);
    not_negative(spec, "minReadySeconds", "spec", errors);
    not_negative(spec, "revisionHistoryLimit", "spec", errors);
    let (strategy, rolling) = (&spec["updateStrategy"], &spec["updateStrategy"]["rollingUpdate"]);
    match strategy["type"].as_str().unwrap_or_default() {
        "OnDelete" => {}
        "RollingUpdate" => {
            let field = |name: &str| format!("spec.updateStrategy.rollingUpdate.{name}");
            let unavailable = validate_share(&rolling["maxUnavailable"], &field("maxUnavailable"), errors);
            let surge = validate_share(&rolling["maxSurge"], &field("maxSurge"), errors);
            for name in ["maxUnavailable", "maxSurge"] {
                at_most_all(&rolling[name], &field(name), errors);
            }
            match (unavailable, surge) {
                (0, 0) => {
                    let detail = "cannot be 0 when maxSurge is 0";
                    errors.push(FieldError::required(field("maxUnavailable"), detail));
                }
                (0, _) | (_, 0) => {}
                _ => {
                    let detail = "may not be set when maxUnavailable is non-zero";
                    errors.push(FieldError::invalid(field("maxSurge"), rolling["maxSurge"].clone(), detail));
                }
            }
        }
        _ => errors.push(FieldError::unsupported(
            "spec.updateStrategy",
            strategy.clone(),
            &["RollingUpdate", "OnDelete"],
        )),
    }
}

/// Checks the selector, the template, and that the selector matches the template. kube-apiserver
/// uses the name `owner` in errors about the template and `kind` in errors about the selector.
fn validate_template(
    spec: &Value,
    owner: &str,
    kind: &str,
    further_volumes: &[&str],
    errors: &mut Vec<FieldError>,
) {
    let selector = &spec["selector"];
    let before = errors.len();
    let is_empty = label_selector::read(selector).is_empty();
    if !selector.is_object() {
        errors.push(FieldError::required("spec.selector", ""));
    } else {
        validate_selector(selector, "spec.selector", errors);
        if is_empty {
            let detail = format!("empty selector is invalid for {kind}");
            errors.push(FieldError::invalid("spec.selector", selector.clone(), detail));
        }
    }
    // A missing selector selects nothing. Do not evaluate a malformed one.
    let is_readable = errors.len() == before || !selector.is_object();
    let template = &spec["template"];
    let labels = &template["metadata"]["labels"];
    let matches = selector.is_object()
        && (is_empty || label_selector::read(selector).matches(|label| labels[label].as_str()));
    if is_readable && !matches {
        let detail = "`selector` does not match template `labels`";
        errors.push(FieldError::invalid("spec.template.metadata.labels", labels.clone(), detail));
    }
    validate_labels(labels, "spec.template.labels", errors);
    let pod = &template["spec"];
    pods_validation::validate_spec(pod, "spec.template.spec", further_volumes, errors);
    if pod["ephemeralContainers"].as_array().is_some_and(|containers| !containers.is_empty()) {
        let detail = "ephemeral containers not allowed in pod template";
        errors.push(FieldError::forbidden("spec.template.spec.ephemeralContainers", detail));
    }
    let policy = pod["restartPolicy"].as_str().unwrap_or_default();
    if policy != "Always" {
        errors.push(FieldError::unsupported("spec.template.spec.restartPolicy", policy, &["Always"]));
    }
    if pod.get("activeDeadlineSeconds").is_some() {
        let detail = format!("activeDeadlineSeconds in {owner} is not Supported");
        errors.push(FieldError::forbidden("spec.template.spec.activeDeadlineSeconds", detail));
    }
}

fn validate_same_selector(new: &Value, old: &Value, errors: &mut Vec<FieldError>) {
    if new["spec"]["selector"] != old["spec"]["selector"] {
        let detail = "field is immutable";
        errors.push(FieldError::invalid("spec.selector", new["spec"]["selector"].clone(), detail));
    }
}

fn validate_stateful_set_update(new: &Value, old: &Value, errors: &mut Vec<FieldError>) {
    let frozen = |set: &Value| {
        let mut spec = set["spec"].clone();
        if let Some(spec) = spec.as_object_mut() {
            for field in [
                "replicas",
                "ordinals",
                "template",
                "updateStrategy",
                "revisionHistoryLimit",
                "persistentVolumeClaimRetentionPolicy",
                "minReadySeconds",
            ] {
                spec.shift_remove(field);
            }
        }
        spec
    };
    if frozen(new) != frozen(old) {
        let detail = "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden";
        errors.push(FieldError::forbidden("spec", detail));
    }
}

fn not_negative(object: &Value, field: &str, path: &str, errors: &mut Vec<FieldError>) {
    if let Some(number) = object[field].as_i64().filter(|number| *number < 0) {
        let detail = "must be greater than or equal to 0";
        errors.push(FieldError::invalid(format!("{path}.{field}"), number, detail));
    }
}

/// Checks that no count of a status is negative or exceeds the number of pods.
fn validate_counts(status: &Value, counts: &[&str], available: &str, errors: &mut Vec<FieldError>) {
    let count = |name: &str| status[name].as_i64().unwrap_or(0);
    for name in ["observedGeneration", "replicas"].iter().chain(counts) {
        not_negative(status, name, "status", errors);
    }
    for name in counts.iter().filter(|name| count(name) > count("replicas")) {
        let detail = "cannot be greater than status.replicas";
        errors.push(FieldError::invalid(format!("status.{name}"), count(name), detail));
    }
    if count("availableReplicas") > count("readyReplicas") {
        errors.push(FieldError::invalid("status.availableReplicas", count("availableReplicas"), available));
    }
}

/// Checks a number or percentage, and returns the number.
pub(super) fn validate_share(share: &Value, field: &str, errors: &mut Vec<FieldError>) -> i64 {
    match (share.as_i64(), share.as_str()) {
        (Some(number), _) if number < 0 => {
            let detail = "must be greater than or equal to 0";
            errors.push(FieldError::invalid(field, number, detail));
            number
        }
        (Some(number), _) => number,
        (None, Some(text)) => percentage(text).unwrap_or_else(|| {
            let detail = "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')";
            errors.push(FieldError::invalid(field, text, detail));
            0
        }),
        (None, None) => 0,
    }
}

fn percentage(text: &str) -> Option<i64> {
    let digits = text.strip_suffix('%').filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))?;
    digits.parse().ok()
}

pub(super) fn at_most_all(share: &Value, field: &str, errors: &mut Vec<FieldError>) {
    if share.as_str().and_then(percentage).is_some_and(|share| share > 100) {
        errors.push(FieldError::invalid(field, share.clone(), "must not be greater than 100%"));
    }
}
