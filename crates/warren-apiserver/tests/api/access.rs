//! Authorization beyond the recorded scenarios: changing roles and bound tokens.

use k8s_openapi::api::authentication::v1::{TokenRequest, TokenReview};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Secret, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use kube::Client;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use serde_json::json;
use warren_apiserver::{ApiServer, Identity};

use crate::support::{eventually, object, refusal, server, widget, widget_api};

fn user(server: &ApiServer, name: &str) -> Client {
    Client::new(server.as_user(Identity::new(name, [])), "default")
}

#[tokio::test]
async fn a_role_with_the_right_label_becomes_part_of_another() {
    let (server, admin) = server().await;
    let bindings: Api<ClusterRoleBinding> = Api::all(admin.clone());
    let binding = json!({
        "metadata": {"name": "viewers"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "jane"}],
    });
    bindings.create(&PostParams::default(), &object(binding)).await.unwrap();
    let jane = user(&server, "jane");
    Api::<Pod>::default_namespaced(jane.clone()).list(&ListParams::default()).await.unwrap();
    let secrets: Api<Secret> = Api::default_namespaced(jane.clone());
    assert_eq!(refusal(secrets.list(&ListParams::default()).await).code, 403);
    let widgets = widget_api(&jane);
    assert_eq!(refusal(widgets.list(&ListParams::default()).await).code, 403);
    let role = json!({
        "metadata": {
            "name": "widget-viewer",
            "labels": {"rbac.authorization.k8s.io/aggregate-to-view": "true"},
        },
        "rules": [{"apiGroups": ["example.com"], "resources": ["widgets"], "verbs": ["list"]}],
    });
    let roles: Api<ClusterRole> = Api::all(admin);
    roles.create(&PostParams::default(), &object(role)).await.unwrap();
    eventually("widgets are open", async || widgets.list(&ListParams::default()).await.is_ok()).await;
    assert_eq!(refusal(widgets.create(&PostParams::default(), &widget("w", json!({}))).await).code, 403);
    roles.delete("widget-viewer", &DeleteParams::default()).await.unwrap();
    eventually("widgets are closed", async || widgets.list(&ListParams::default()).await.is_err()).await;
}

#[tokio::test]
async fn a_binding_to_a_role_that_is_not_there_says_so() {
    let (server, admin) = server().await;
    let bindings: Api<RoleBinding> = Api::default_namespaced(admin.clone());
    let binding = json!({
        "metadata": {"name": "b"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"},
        "subjects": [{"kind": "Group", "name": "system:authenticated"}],
    });
    bindings.create(&PostParams::default(), &object(binding)).await.unwrap();
    let pods: Api<Pod> = Api::default_namespaced(user(&server, "jane"));
    let refused = refusal(pods.list(&ListParams::default()).await);
    let why = ": RBAC: role.rbac.authorization.k8s.io \"r\" not found";
    assert!(refused.message.ends_with(why), "{}", refused.message);
    let role = json!({
        "metadata": {"name": "r"}, "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}],
    });
    let roles: Api<Role> = Api::default_namespaced(admin);
    roles.create(&PostParams::default(), &object(role)).await.unwrap();
    pods.list(&ListParams::default()).await.unwrap();
}

#[tokio::test]
async fn a_token_ends_with_the_pod_that_it_is_bound_to() {
    let (_server, admin) = server().await;
    let pods: Api<Pod> = Api::default_namespaced(admin.clone());
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let pod: Pod = pods.create(&PostParams::default(), &object(pod)).await.unwrap();
    let accounts: Api<ServiceAccount> = Api::default_namespaced(admin.clone());
    let request = json!({
        "spec": {"audiences": [], "boundObjectRef": {
            "apiVersion": "v1", "kind": "Pod", "name": "p", "uid": pod.metadata.uid,
        }},
    });
    let request: TokenRequest = object(request);
    let token = accounts.create_token_request("default", &PostParams::default(), &request).await.unwrap();
    let token = token.status.unwrap().token;
    let reviews: Api<TokenReview> = Api::all(admin);
    let review: TokenReview = object(json!({"spec": {"token": token}}));
    let good = reviews.create(&PostParams::default(), &review).await.unwrap().status.unwrap();
    assert_eq!(good.authenticated, Some(true), "{good:?}");
    let user = good.user.unwrap();
    assert_eq!(user.username.as_deref(), Some("system:serviceaccount:default:default"));
    assert_eq!(user.extra.unwrap()["authentication.kubernetes.io/pod-name"], ["p"]);
    let now = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
    pods.delete("p", &now).await.unwrap();
    let bad = reviews.create(&PostParams::default(), &review).await.unwrap().status.unwrap();
    assert_eq!((bad.authenticated, bad.error.as_deref()), (None, Some("invalid bearer token")));
}

#[tokio::test]
async fn a_claim_that_a_pod_uses_stays_until_the_pod_is_gone() {
    let (_server, admin) = server().await;
    let claims: Api<PersistentVolumeClaim> = Api::default_namespaced(admin.clone());
    let claim = json!({
        "metadata": {"name": "c"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    });
    claims.create(&PostParams::default(), &object(claim)).await.unwrap();
    let pods: Api<Pod> = Api::default_namespaced(admin);
    let pod = json!({"metadata": {"name": "p"}, "spec": {
        "containers": [{"name": "c", "image": "i"}],
        "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}],
    }});
    pods.create(&PostParams::default(), &object(pod)).await.unwrap();
    let marked = claims.delete("c", &DeleteParams::default()).await.unwrap().left().unwrap();
    assert!(marked.metadata.deletion_timestamp.is_some());
    // Pods come after claims in the order of checks.
    let other = json!({"metadata": {"name": "q"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    pods.create(&PostParams::default(), &object(other)).await.unwrap();
    assert!(claims.get_opt("c").await.unwrap().is_some());
    pods.delete("p", &DeleteParams::default()).await.unwrap();
    eventually("the claim is gone", async || claims.get_opt("c").await.unwrap().is_none()).await;
}
