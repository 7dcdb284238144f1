//! The paths of the API, and what answers them.

use std::sync::Arc;

use bytes::Bytes;
use http::header::SET_COOKIE;
use http::{HeaderValue, Method, Response, StatusCode};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};

use super::access::{self, COOKIE_NAME, Caller, LOGIN_LIFE};
use super::answer::{Body, Failure, data, stream_response};
use super::request::Request;
use super::{Service, agent_runs, changes, cluster, network, sandboxes, sessions, settings, tasks};

type Answer = Result<Response<Body>, Failure>;

/// Answers a request to the API.
pub async fn answer(service: &Arc<Service>, request: Request) -> Answer {
    let path = request.path.clone();
    let parts: Vec<&str> = path.split('/').skip(1).collect();
    let (get, post, put, delete) = (Method::GET, Method::POST, Method::PUT, Method::DELETE);
    let method = request.method.clone();
    let is = |wanted: &Method| method == *wanted;
    if parts == ["login"] && is(&post) {
        return login(service, request).await;
    }
    let caller = service.access.admit(&request.method, &request.headers, Timestamp::now())?;
    match parts.as_slice() {
        ["logout"] if is(&post) => logout(service, &caller).await,
        ["status"] if is(&get) => status(service).await,
        ["stream"] if is(&get) => Ok(stream(service)),
        ["settings"] if is(&get) => data(&service.database.settings().await?),
        ["settings", key] if is(&put) => set(service, key, request).await,
        ["pools"] if is(&get) => cluster::pools(service).await,
        ["claims"] if is(&get) => cluster::claims(service).await,
        ["tasks"] if is(&get) => tasks::list(service).await,
        ["tasks"] if is(&post) => tasks::create(service, request).await,
        ["tasks", name] if is(&get) => tasks::one(service, name).await,
        ["tasks", name] if is(&delete) => tasks::remove(service, name).await,
        ["tasks", name, "cancel"] if is(&post) => tasks::cancel(service, name).await,
        ["tasks", name, "log"] if is(&get) => tasks::log(service, name).await,
        ["sandbox", "k8s", "controller"] if is(&get) => cluster::controller(service).await,
        ["sandbox", "k8s", what] if is(&get) => cluster::cluster(service, what, &request).await,
        ["sandboxes"] if is(&get) => data(&service.provider.list().await?),
        ["sandboxes"] if is(&post) => sandboxes::create(service, request).await,
        ["sandboxes", id] if is(&get) => sandboxes::one(service, id).await,
        ["sandboxes", id] if is(&delete) => sandboxes::remove(service, id).await,
        ["sandboxes", id, "start"] if is(&post) => data(&service.provider.start(id).await?),
        ["sandboxes", id, "stop"] if is(&post) => data(&service.provider.stop(id).await?),
        ["sandboxes", id, "exec"] if is(&post) => sandboxes::exec(service, id, request).await,
        ["sandboxes", id, "files"] if is(&get) => sandboxes::list_files(service, id, &request).await,
        ["sandboxes", id, "files", "content"] if is(&get) => sandboxes::read(service, id, &request).await,
        ["sandboxes", id, "files", "content"] if is(&put) => sandboxes::write(service, id, request).await,
        ["sandboxes", id, "events"] if is(&get) => data(&service.provider.history(id).await?),
        ["sandboxes", id, "explain"] if is(&get) => data(&service.provider.explain(id).await?),
        ["sandboxes", id, "metrics"] if is(&get) => data(&service.provider.metrics(id).await?),
        ["sandboxes", id, "network"] if is(&get) => network::show(service, id).await,
        ["sandboxes", id, "network"] if is(&put) => network::set(service, id, request).await,
        ["sandboxes", id, "network", "allow"] if is(&post) => network::allow(service, id, request).await,
        ["sandboxes", id, "terminals"] if is(&post) => sessions::open(service, id, request).await,
        ["agent-runs"] if is(&get) => agent_runs::list(service, &request).await,
        ["agent-runs"] if is(&post) => agent_runs::create(service, request).await,
        ["agent-runs", id] if is(&get) => agent_runs::one(service, id).await,
        ["agent-runs", id] if is(&delete) => agent_runs::remove(service, id).await,
        ["agent-runs", id, "patch"] if is(&get) => agent_runs::patch(service, id).await,
        ["agent-runs", id, "cancel"] if is(&post) => agent_runs::cancel(service, id).await,
        ["sessions"] if is(&get) => sessions::list(service).await,
        ["sessions", id] if is(&get) => sessions::one(service, id).await,
        ["sessions", id] if is(&delete) => sessions::remove(service, id).await,
        ["sessions", id, "events"] if is(&get) => sessions::events(service, id, &request).await,
        ["sessions", id, "stream"] if is(&get) => sessions::stream(service, id, &request).await,
        ["sessions", id, "input"] if is(&post) => sessions::input(service, id, request).await,
        ["sessions", id, "resize"] if is(&post) => sessions::resize(service, id, request).await,
        ["sessions", id, "export"] if is(&get) => sessions::export(service, id, &request).await,
        _ => Err(Failure::no_route()),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Login {
    key: String,
}

/// Exchanges a key for a cookie.
async fn login(service: &Service, request: Request) -> Answer {
    // A page of another site could otherwise log its visitor in with a key of its own.
    if request.headers.contains_key(http::header::ORIGIN) && !access::is_same_origin(&request.headers) {
        return Err(access::foreign_origin());
    }
    let login: Login = request.json().await?;
    if !service.access.is_key(&login.key) {
        return Err(Failure::new(StatusCode::UNAUTHORIZED, "UNAUTHORIZED", "this key is not valid"));
    }
    let token = access::secret("")?;
    let end = Timestamp::now() + LOGIN_LIFE;
    service.database.add_login(access::hash(&token), end).await?;
    service.access.add_login(access::hash(&token), end);
    let life = LOGIN_LIFE.as_secs();
    with_cookie(&format!("{COOKIE_NAME}={token}; HttpOnly; SameSite=Strict; Path=/; Max-Age={life}"))
}

async fn logout(service: &Service, caller: &Caller) -> Answer {
    if let Caller::Login(login) = caller {
        service.access.remove_login(login);
        service.database.remove_login(*login).await?;
    }
    with_cookie(&format!("{COOKIE_NAME}=; HttpOnly; SameSite=Strict; Path=/; Max-Age=0"))
}

fn with_cookie(cookie: &str) -> Answer {
    let mut response = data(&json!({}))?;
    let value = HeaderValue::from_str(cookie).map_err(|error| Failure::internal(error.to_string()))?;
    response.headers_mut().insert(SET_COOKIE, value);
    Ok(response)
}

async fn status(service: &Service) -> Answer {
    let health = service.provider.health_check().await;
    let namespace = health.details["namespace"].clone();
    let provider =
        json!({ "name": service.provider.name(), "healthy": health.healthy, "message": health.message });
    data(&json!({ "version": env!("CARGO_PKG_VERSION"), "provider": provider, "namespace": namespace }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Setting {
    value: Value,
}

async fn set(service: &Service, key: &str, request: Request) -> Answer {
    let setting: Setting = request.json().await?;
    settings::check(key, &setting.value)?;
    service.database.set(key, &setting.value).await?;
    data(&setting.value)
}

/// Streams which lists have changed.
fn stream(service: &Arc<Service>) -> Response<Body> {
    let begin = (service.changes.subscribe(), service.shutdown.clone(), true);
    let parts = futures::stream::unfold(begin, |(mut changes, shutdown, first)| async move {
        if first {
            // So that the client knows that it is connected.
            return Some((
                Ok::<_, std::io::Error>(Bytes::from_static(b": connected\n\n")),
                (changes, shutdown, false),
            ));
        }
        let text = tokio::select! {
            topics = changes::next(&mut changes) => {
                topics?.into_iter().map(|topic| format!("data: {}\n\n", json!({ "topic": topic }))).collect()
            }
            () = tokio::time::sleep(sessions::KEEP_ALIVE) => ": keep-alive\n\n".to_owned(),
            () = shutdown.cancelled() => return None,
        };
        Some((Ok(Bytes::from(text)), (changes, shutdown, false)))
    });
    stream_response("text/event-stream", parts)
}
