//! The entry point of requests: authenticate, route, dispatch, answer.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Method, Request, Response, StatusCode, header, request};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper_util::rt::TokioIo;
use tower::BoxError;
use warren_store::Ahead;

use crate::access::{self, Attributes};
use crate::call::Call;
use crate::identity::Identity;
use crate::limits::BodyRefused;
use crate::query::{Query, decode};
use crate::resource_registry::Registry;
use crate::respond::{self, Representation, ResponseBody};
use crate::route::{self, ResourcePath, Route};
use crate::server::{ApiServer, Inner};
use crate::status::ApiError;
use crate::{audit, discovery, kubelet_proxy, openapi, verbs};

/// The maximum size of a body, as in kube-apiserver.
const LARGEST_BODY: usize = 3 << 20;
/// The buffer size of the in-process stream that carries an upgraded connection.
const UPGRADE_BUFFER: usize = 64 << 10;

/// The server for one user, in process. Pass it to `kube::Client::new`.
#[derive(Clone)]
pub struct InProcess {
    server: ApiServer,
    identity: Arc<Identity>,
    without_managed_fields: bool,
    ahead: Option<Arc<Ahead>>,
}

/// Reports lost writes to a client that writes ahead of the disk.
pub struct Lost(Arc<Ahead>);

impl Lost {
    /// Returns when a write that was acknowledged to the client did not reach the disk.
    pub async fn wait(&self) {
        self.0.lost().await;
    }
}

/// A request extension: the answer needs no `managedFields`.
#[derive(Debug, Clone, Copy)]
struct WithoutManagedFields;

impl InProcess {
    pub(crate) fn new(server: ApiServer, identity: Identity) -> InProcess {
        InProcess { server, identity: Arc::new(identity), without_managed_fields: false, ahead: None }
    }

    /// Leaves `managedFields` out of every answer, for clients that do not use them. They stay in
    /// the store, and a write without them does not change them.
    #[must_use]
    pub fn without_managed_fields(self) -> InProcess {
        InProcess { without_managed_fields: true, ..self }
    }

    /// Acknowledges writes before they are on disk, for a client that keeps what it reads to
    /// itself. If one of them is lost, every later write is refused and [`Lost`] reports it. The
    /// client must then start again with an empty cache.
    #[must_use]
    pub fn ahead_of_the_disk(self) -> (InProcess, Lost) {
        let ahead = Arc::new(self.server.inner.store.ahead());
        (InProcess { ahead: Some(Arc::clone(&ahead)), ..self }, Lost(ahead))
    }
}

impl<B> tower::Service<Request<B>> for InProcess
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<ResponseBody>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Response<ResponseBody>, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        request.extensions_mut().insert(Arc::clone(&self.identity));
        if self.without_managed_fields {
            request.extensions_mut().insert(WithoutManagedFields);
        }
        if let Some(ahead) = &self.ahead {
            request.extensions_mut().insert(Arc::clone(ahead));
        }
        let server = Arc::clone(&self.server.inner);
        Box::pin(async move {
            // Only hyper can create an upgraded response, so such a request goes through hyper.
            if request.headers().contains_key(header::UPGRADE) {
                return upgrade_in_process(server, request).await;
            }
            Ok(handle(&server, request).await)
        })
    }
}

/// Sends a request through a real HTTP/1.1 connection over an in-process stream.
async fn upgrade_in_process<B>(
    server: Arc<Inner>,
    request: Request<B>,
) -> Result<Response<ResponseBody>, BoxError>
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let identity = request.extensions().get::<Arc<Identity>>().cloned();
    let (client, service) = tokio::io::duplex(UPGRADE_BUFFER);
    let answer = hyper::service::service_fn(move |mut request: Request<hyper::body::Incoming>| {
        let server = Arc::clone(&server);
        if let Some(identity) = identity.clone() {
            request.extensions_mut().insert(identity);
        }
        async move { Ok::<_, Infallible>(handle(&server, request).await) }
    });
    let connection =
        hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(service), answer);
    tokio::spawn(connection.with_upgrades());
    let (parts, body) = request.into_parts();
    let body = body.collect().await.map_err(Into::into)?.to_bytes();
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(client)).await?;
    tokio::spawn(connection.with_upgrades());
    let mut request = Request::from_parts(parts, http_body_util::Full::new(body));
    *request.uri_mut() = request
        .uri()
        .path_and_query()
        .map_or_else(|| http::Uri::from_static("/"), |path| http::Uri::from(path.clone()));
    request.headers_mut().entry(header::HOST).or_insert(http::HeaderValue::from_static("kubernetes"));
    let response = sender.send_request(request).await?;
    let refused = response.status() != StatusCode::SWITCHING_PROTOCOLS;
    let (parts, body) = response.into_parts();
    // An upgraded response has no body. A refusal is a short `Status`.
    let body = if refused { body.collect().await?.to_bytes() } else { Bytes::new() };
    Ok(Response::from_parts(parts, http_body_util::Full::new(body).boxed_unsync()))
}

/// Answers one request. The identity, if any, is an extension of the request.
pub(crate) async fn handle<B>(server: &Arc<Inner>, request: Request<B>) -> Response<ResponseBody>
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let (mut parts, body) = request.into_parts();
    let identity = parts.extensions.get::<Arc<Identity>>().cloned();
    let entry = audit::Entry::begin(server, &parts, identity.as_deref());
    let as_yaml = respond::wants_yaml(&parts.headers);
    let mut response = match route(server, &mut parts, body, identity).await {
        Ok(response) => response,
        Err(error) => respond::error(&error),
    };
    if as_yaml {
        response = respond::into_yaml(response).await;
    }
    if let Some(entry) = entry {
        entry.finish(&mut response);
    }
    response
}

async fn route<B>(
    server: &Arc<Inner>,
    parts: &mut request::Parts,
    body: B,
    identity: Option<Arc<Identity>>,
) -> Result<Response<ResponseBody>, ApiError>
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let path = decode(parts.uri.path(), false);
    let parsed = route::parse(&path);
    let identity = match identity {
        Some(sender) => Some(permit(server, parts, &path, &parsed, sender)?),
        None => None,
    };
    match parsed {
        Route::Health => {
            return Ok(respond::bytes(
                StatusCode::OK,
                "text/plain; charset=utf-8",
                Bytes::from_static(b"ok"),
            ));
        }
        Route::Version if parts.method != Method::GET => return Err(ApiError::method_not_allowed()),
        Route::Version => return Ok(respond::json(StatusCode::OK, &discovery::version())),
        _ => {}
    }
    let Some(identity) = identity else { return Err(ApiError::unauthorized()) };
    if server.shutdown.is_cancelled() {
        return Err(ApiError::unavailable("the server is shutting down"));
    }
    let registry = server.registry();
    if let Route::Resource(path) = parsed {
        return resource(server, parts, body, path, &identity).await;
    }
    if parts.method != Method::GET {
        return Err(ApiError::method_not_allowed());
    }
    match parsed {
        Route::Index => Ok(respond::json(StatusCode::OK, &discovery::index(&registry))),
        Route::Metrics => Ok(match server.metrics.get() {
            Some(page) => {
                let text = (page.text)() + &server.store.metrics();
                respond::bytes(StatusCode::OK, page.media_type, Bytes::from(text))
            }
            None => page_not_found(),
        }),
        Route::CoreVersions => Ok(discovery::core(&registry, &parts.headers)),
        Route::Groups => Ok(discovery::groups(&registry, &parts.headers)),
        Route::Group(group) => Ok(discovery::group(&registry, group).unwrap_or_else(page_not_found)),
        Route::Resources { group, version } => match discovery::resources(&registry, group, version) {
            Some(document) => Ok(document),
            None => nothing_here(&registry, group),
        },
        Route::TooDeep { group } => nothing_here(&registry, group),
        Route::OpenApiV2 => Ok(openapi::version_2(&parts.headers)),
        Route::OpenApiIndex => Ok(openapi::index(&registry)),
        Route::OpenApiGroup { group, version } => {
            Ok(openapi::group(&registry, group, version).unwrap_or_else(page_not_found))
        }
        Route::Health | Route::Version | Route::Resource(_) | Route::Unknown => Ok(page_not_found()),
    }
}

/// Authorizes a request and returns the user it acts as. Members of `system:masters` skip the
/// check.
fn permit(
    server: &Inner,
    parts: &request::Parts,
    path: &str,
    route: &Route<'_>,
    sender: Arc<Identity>,
) -> Result<Arc<Identity>, ApiError> {
    let impersonates = access::is_impersonation(&parts.headers);
    if !impersonates && sender.is_all_powerful() {
        return Ok(sender);
    }
    let query = Query::parse(parts.uri.query().unwrap_or_default());
    let attributes = Attributes::of(&parts.method, path, route, &query);
    let identity = match impersonates {
        true => access::impersonate(server, &sender, &parts.headers, &attributes)?,
        false => sender,
    };
    server.access.authorize(&server.store, &identity, &attributes)?;
    Ok(identity)
}

/// Answers a path without a resource. Groups of built-in kinds answer with a `Status`; for others
/// the path does not exist.
fn nothing_here(registry: &Registry, group: &str) -> Result<Response<ResponseBody>, ApiError> {
    // Groups without a dot in their name belong to Kubernetes, served here or not.
    if registry.is_builtin(group) || !group.contains('.') {
        return Err(ApiError::no_such_resource());
    }
    Ok(page_not_found())
}

fn page_not_found() -> Response<ResponseBody> {
    let text = Bytes::from_static(b"404 page not found\n");
    respond::bytes(StatusCode::NOT_FOUND, "text/plain; charset=utf-8", text)
}

async fn resource<B>(
    server: &Arc<Inner>,
    parts: &mut request::Parts,
    body: B,
    path: ResourcePath<'_>,
    identity: &Identity,
) -> Result<Response<ResponseBody>, ApiError>
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let registry = server.registry();
    let Some(target) = registry.target(path.group, path.version, path.plural) else {
        return nothing_here(&registry, path.group);
    };
    drop(registry);
    // The path of a namespaced object has a namespace. That of a cluster-scoped object never has.
    let misplaced = match target.definition.namespaced {
        true => path.namespace.is_none() && path.name.is_some(),
        false => path.namespace.is_some(),
    };
    if misplaced {
        return nothing_here(&server.registry(), path.group);
    }
    let query = Query::parse(parts.uri.query().unwrap_or_default());
    if &*target.definition.resource == "pods" && parts.method != Method::OPTIONS {
        match path.subresource {
            Some(stream @ ("attach" | "exec" | "portforward")) => {
                return kubelet_proxy::stream(server, parts, path, stream).await;
            }
            Some("log") => return kubelet_proxy::log(server, path, &query).await,
            Some("proxy") => return Err(kubelet_proxy::no_proxy()),
            _ => {}
        }
    }
    if let ("nodes", Some(node), Some("proxy")) = (&*target.definition.resource, path.name, path.subresource)
    {
        return kubelet_proxy::proxy(server, parts, body, node).await;
    }
    let headers = std::mem::take(&mut parts.headers);
    let is_list = parts.method == Method::GET && path.name.is_none();
    let representation = match Representation::negotiate(&headers, &query, is_list)? {
        Representation::Object if parts.extensions.get::<WithoutManagedFields>().is_some() => {
            Representation::Unmanaged
        }
        asked_for => asked_for,
    };
    let ahead = parts.extensions.get::<Arc<Ahead>>().cloned();
    let call = Call {
        representation,
        ahead: ahead.as_deref(),
        target,
        namespace: path.namespace,
        name: path.name,
        subresource: path.subresource,
        query,
        headers: &headers,
        identity,
        watch: path.watch,
        now: server.now(),
    };
    if parts.method == Method::POST && call.target.definition.namespaced && call.namespace.is_none() {
        return Err(ApiError::method_not_allowed());
    }
    let body = match parts.method {
        Method::GET => Bytes::new(),
        _ => read_body(body).await?,
    };
    verbs::dispatch(server, &call, &parts.method, &body).await
}

async fn read_body<B>(body: B) -> Result<Bytes, ApiError>
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    // Refuse by the announced length before reading.
    if body.size_hint().lower() > LARGEST_BODY as u64 {
        return Err(ApiError::too_large(LARGEST_BODY));
    }
    match Limited::new(body, LARGEST_BODY).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<BodyRefused>() => Err(error
            .downcast::<BodyRefused>()
            .map_or_else(ApiError::internal, |refused| refused.into_error())),
        Err(error) if error.is::<LengthLimitError>() => Err(ApiError::too_large(LARGEST_BODY)),
        Err(error) => Err(ApiError::bad_request(format!("error reading the request body: {error}"))),
    }
}
