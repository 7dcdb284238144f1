//! Errors with kube-apiserver's messages. Every error that a client gets is a `Status` object built
//! here.

use std::fmt;

use http::StatusCode;
use serde_json::{Map, Value, json};

/// A refused request: the HTTP code and the contents of its `Status` body.
#[derive(Debug, Clone, PartialEq)]
pub struct ApiError {
    /// The HTTP status.
    pub code: StatusCode,
    /// The machine-readable reason, such as `NotFound`.
    pub reason: &'static str,
    /// The message for people.
    pub message: String,
    details: Option<Box<Value>>,
    /// `metadata.continue` of an expired list.
    continue_token: Option<String>,
}

/// The object that an error is about.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Subject<'a> {
    pub group: &'a str,
    /// The plural resource for most errors, the kind for `Invalid`.
    pub kind: &'a str,
    pub name: &'a str,
}

/// The subject of errors about the query of a list or watch.
pub(crate) const LIST_OPTIONS: Subject<'static> =
    Subject { group: "meta.k8s.io", kind: "ListOptions", name: "" };

impl Subject<'_> {
    fn details(&self) -> Map<String, Value> {
        let mut details = Map::new();
        if !self.name.is_empty() {
            details.insert("name".to_owned(), self.name.into());
        }
        if !self.group.is_empty() {
            details.insert("group".to_owned(), self.group.into());
        }
        if !self.kind.is_empty() {
            details.insert("kind".to_owned(), self.kind.into());
        }
        details
    }

    fn qualified(&self) -> String {
        if self.group.is_empty() { self.kind.to_owned() } else { format!("{}.{}", self.kind, self.group) }
    }
}

impl ApiError {
    fn new(code: StatusCode, reason: &'static str, message: impl Into<String>) -> ApiError {
        ApiError { code, reason, message: message.into(), details: None, continue_token: None }
    }

    fn about(mut self, details: Map<String, Value>) -> ApiError {
        self.details = Some(Box::new(Value::Object(details)));
        self
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, "BadRequest", message)
    }

    pub(crate) fn not_found(subject: Subject<'_>) -> ApiError {
        let message = format!("{} {:?} not found", subject.qualified(), subject.name);
        ApiError::new(StatusCode::NOT_FOUND, "NotFound", message).about(subject.details())
    }

    /// Returns the error for a path below a known group that names no resource.
    pub(crate) fn no_such_resource() -> ApiError {
        ApiError::new(StatusCode::NOT_FOUND, "NotFound", "the server could not find the requested resource")
            .about(Map::new())
    }

    pub(crate) fn already_exists(subject: Subject<'_>) -> ApiError {
        let message = format!("{} {:?} already exists", subject.qualified(), subject.name);
        ApiError::new(StatusCode::CONFLICT, "AlreadyExists", message).about(subject.details())
    }

    /// Returns the error for a generated name that is taken. The client may try again.
    pub(crate) fn generated_name_taken(subject: Subject<'_>) -> ApiError {
        let mut error = ApiError::already_exists(subject);
        error.message.push_str(", the server was not able to generate a unique name for the object");
        if let Some(details) = error.details.as_deref_mut() {
            details["retryAfterSeconds"] = 1.into();
        }
        error
    }

    pub(crate) fn modified(subject: Subject<'_>) -> ApiError {
        ApiError::conflict(
            subject,
            "the object has been modified; please apply your changes to the latest version and try again",
        )
    }

    pub(crate) fn conflict(subject: Subject<'_>, why: &str) -> ApiError {
        let message =
            format!("Operation cannot be fulfilled on {} {:?}: {why}", subject.qualified(), subject.name);
        ApiError::new(StatusCode::CONFLICT, "Conflict", message).about(subject.details())
    }

    pub(crate) fn forbidden(subject: Subject<'_>, why: &str) -> ApiError {
        let message = match subject.name {
            "" => format!("{} is forbidden: {why}", subject.qualified()),
            name => format!("{} {name:?} is forbidden: {why}", subject.qualified()),
        };
        ApiError::new(StatusCode::FORBIDDEN, "Forbidden", message).about(subject.details())
    }

    /// Returns the error for a forbidden path that is no resource.
    pub(crate) fn forbidden_path(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::FORBIDDEN, "Forbidden", message).about(Map::new())
    }

    pub(crate) fn namespace_terminating(subject: Subject<'_>, namespace: &str) -> ApiError {
        let why =
            format!("unable to create new content in namespace {namespace} because it is being terminated");
        let mut error = ApiError::forbidden(subject, &why);
        if let Some(details) = error.details.as_deref_mut() {
            details["causes"] = json!([{
                "reason": "NamespaceTerminating",
                "message": format!("namespace {namespace} is being terminated"),
                "field": "metadata.namespace",
            }]);
        }
        error
    }

    pub(crate) fn invalid(subject: Subject<'_>, errors: Vec<FieldError>) -> ApiError {
        let kind = Subject { kind: subject.kind, ..subject };
        let mut sentences: Vec<String> = Vec::with_capacity(errors.len());
        for sentence in errors.iter().map(FieldError::to_string) {
            // A duplicate error is listed twice as a cause, but appears once in the message.
            if !sentences.contains(&sentence) {
                sentences.push(sentence);
            }
        }
        let sentence = match sentences.as_slice() {
            [one] => one.clone(),
            several => format!("[{}]", several.join(", ")),
        };
        let causes: Vec<_> = errors.iter().map(FieldError::cause).collect();
        let mut details = kind.details();
        details.insert("causes".to_owned(), causes.into());
        let subject_name = Value::from(subject.name);
        let message = format!("{} {subject_name} is invalid: {sentence}", kind.qualified());
        ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", message).about(details)
    }

    pub(crate) fn expired(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::GONE, "Expired", message)
    }

    pub(crate) fn with_continue(mut self, token: String) -> ApiError {
        self.continue_token = Some(token);
        self
    }

    /// Returns the error for a list at a version in the future.
    pub(crate) fn version_too_large(requested: u64, current: u64) -> ApiError {
        let mut details = Map::new();
        let cause = json!({"reason": "ResourceVersionTooLarge", "message": "Too large resource version"});
        details.insert("causes".to_owned(), json!([cause]));
        details.insert("retryAfterSeconds".to_owned(), 1.into());
        let message = format!("Timeout: Too large resource version: {requested}, current: {current}");
        ApiError::new(StatusCode::GATEWAY_TIMEOUT, "Timeout", message).about(details)
    }

    pub(crate) fn method_not_allowed() -> ApiError {
        let message = "the server does not allow this method on the requested resource";
        ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", message).about(Map::new())
    }

    pub(crate) fn unsupported_media_type(accepted: &str) -> ApiError {
        let message = format!(
            "the body of the request was in an unknown format - accepted media types include: {accepted}"
        );
        ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "UnsupportedMediaType", message)
    }

    /// Returns the error for a request that accepts none of the offered forms.
    pub(crate) fn no_representation(of_list: bool) -> ApiError {
        let streams = match of_list {
            true => ", application/json;stream=watch, application/vnd.kubernetes.protobuf;stream=watch",
            false => "",
        };
        let message = format!(
            "406: Not Acceptable\n\nAvailable representations: application/json, application/yaml, application/vnd.kubernetes.protobuf{streams}"
        );
        ApiError::new(StatusCode::NOT_ACCEPTABLE, "NotAcceptable", message).about(Map::new())
    }

    pub(crate) fn too_large(limit: usize) -> ApiError {
        ApiError::entity_too_large(format!("limit is {limit}"))
    }

    pub(crate) fn entity_too_large(why: impl fmt::Display) -> ApiError {
        let message = format!("Request entity too large: {why}");
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "RequestEntityTooLarge", message)
    }

    /// Returns the error for an unknown patch type.
    pub(crate) fn unknown_patch_type() -> ApiError {
        let message = "415: Unsupported Media Type";
        ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "UnsupportedMediaType", message).about(Map::new())
    }

    /// Returns the error for a JSON patch that does not fit the object.
    pub(crate) fn patch_does_not_apply() -> ApiError {
        let message = "the server rejected our request due to an error in our request";
        ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", message).about(Map::new())
    }

    /// Returns the error for a new object with a version. kube-apiserver gives no reason here.
    pub(crate) fn version_on_create() -> ApiError {
        let message = "resourceVersion should not be set on objects to be created";
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "", message)
    }

    /// Returns an internal error without a reason, for cases that kube-apiserver does not classify.
    pub(crate) fn without_reason(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "", message)
    }

    /// Returns the error for an apply that would change fields of other managers, listed by
    /// manager.
    pub(crate) fn apply_conflict(conflicts: &[(String, Vec<String>)]) -> ApiError {
        let fields =
            || conflicts.iter().flat_map(|(owner, fields)| fields.iter().map(move |field| (owner, field)));
        let message = match fields().collect::<Vec<_>>().as_slice() {
            [(owner, field)] => format!("Apply failed with 1 conflict: conflict with {owner}: {field}"),
            all => {
                let lists: Vec<_> = conflicts
                    .iter()
                    .map(|(owner, fields)| format!("conflicts with {owner}:\n- {}", fields.join("\n- ")))
                    .collect();
                format!("Apply failed with {} conflicts: {}", all.len(), lists.join("\n"))
            }
        };
        let causes: Vec<_> = fields()
            .map(|(owner, field)| {
                json!({"reason": "FieldManagerConflict", "message": format!("conflict with {owner}"), "field": field})
            })
            .collect();
        let mut details = Map::new();
        details.insert("causes".to_owned(), causes.into());
        ApiError::new(StatusCode::CONFLICT, "Conflict", message).about(details)
    }

    /// Returns the error for a version that is no number. kube-apiserver gives no reason here.
    pub(crate) fn malformed_version(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "", message)
    }

    pub(crate) fn unauthorized() -> ApiError {
        ApiError::new(StatusCode::UNAUTHORIZED, "Unauthorized", "Unauthorized")
    }

    /// Returns the error for a client beyond its limits. It may try again a little later.
    pub(crate) fn too_many_requests(message: impl Into<String>) -> ApiError {
        let mut details = Map::new();
        details.insert("retryAfterSeconds".to_owned(), 1.into());
        ApiError::new(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", message).about(details)
    }

    /// Returns the error for an eviction that a disruption budget forbids.
    pub(crate) fn disruption(cause: &str) -> ApiError {
        let mut details = Map::new();
        details.insert("causes".to_owned(), json!([{"reason": "DisruptionBudget", "message": cause}]));
        let message = "Cannot evict pod as it would violate the pod's disruption budget.";
        ApiError::new(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", message).about(details)
    }

    /// Returns the error for the eviction of a pod that several disruption budgets select.
    pub(crate) fn several_budgets() -> ApiError {
        let message = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "", message)
    }

    pub(crate) fn request_timeout(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::REQUEST_TIMEOUT, "Timeout", message)
    }

    /// Returns the error for a full disk. Nothing was changed.
    pub(crate) fn insufficient_storage(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::INSUFFICIENT_STORAGE, "InternalError", message)
    }

    pub(crate) fn unavailable(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", message)
    }

    pub(crate) fn internal(message: impl fmt::Display) -> ApiError {
        let message = format!("Internal error occurred: {message}");
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", message)
    }

    /// Returns the seconds after which the client may try again.
    pub(crate) fn retry_after(&self) -> Option<i64> {
        match &self.details {
            _ if self.code == StatusCode::SERVICE_UNAVAILABLE => Some(1),
            Some(details) if self.code != StatusCode::GATEWAY_TIMEOUT => {
                details["retryAfterSeconds"].as_i64()
            }
            _ => None,
        }
    }

    /// Builds the `Status` object.
    pub(crate) fn body(&self) -> Value {
        let mut metadata = Map::new();
        if let Some(token) = &self.continue_token {
            metadata.insert("continue".to_owned(), token.as_str().into());
        }
        let mut body = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": metadata,
            "status": "Failure",
            "message": self.message,
        });
        if !self.reason.is_empty() {
            body["reason"] = self.reason.into();
        }
        if let Some(details) = &self.details {
            body["details"] = (**details).clone();
        }
        body["code"] = self.code.as_u16().into();
        body
    }
}

/// An error about one field. It displays with kube-apiserver's message.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct FieldError {
    pub field: String,
    pub problem: Problem,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Problem {
    Required(String),
    Invalid(Value, String),
    /// Like `Invalid`, for a value that is too large to print.
    InvalidUnshown(String),
    TypeInvalid(Value, String),
    Unsupported(Value, Vec<String>),
    Duplicate(Value),
    Forbidden(String),
    TooLong(usize),
    TooMany(usize, usize),
    NotFound(Value),
}

impl FieldError {
    pub fn required(field: impl Into<String>, detail: &str) -> FieldError {
        FieldError { field: field.into(), problem: Problem::Required(detail.to_owned()) }
    }

    pub fn invalid(
        field: impl Into<String>,
        value: impl Into<Value>,
        detail: impl Into<String>,
    ) -> FieldError {
        FieldError { field: field.into(), problem: Problem::Invalid(value.into(), detail.into()) }
    }

    pub fn forbidden(field: impl Into<String>, detail: impl Into<String>) -> FieldError {
        FieldError { field: field.into(), problem: Problem::Forbidden(detail.into()) }
    }

    pub fn unsupported(field: impl Into<String>, value: impl Into<Value>, known: &[&str]) -> FieldError {
        let known = known.iter().map(|known| format!("{known:?}")).collect();
        FieldError { field: field.into(), problem: Problem::Unsupported(value.into(), known) }
    }

    pub fn duplicate(field: impl Into<String>, value: impl Into<Value>) -> FieldError {
        FieldError { field: field.into(), problem: Problem::Duplicate(value.into()) }
    }

    fn reason(&self) -> &'static str {
        match self.problem {
            Problem::Required(_) => "FieldValueRequired",
            Problem::Invalid(..) | Problem::InvalidUnshown(_) => "FieldValueInvalid",
            Problem::TypeInvalid(..) => "FieldValueTypeInvalid",
            Problem::Unsupported(..) => "FieldValueNotSupported",
            Problem::Duplicate(_) => "FieldValueDuplicate",
            Problem::Forbidden(_) => "FieldValueForbidden",
            Problem::TooLong(_) => "FieldValueTooLong",
            Problem::TooMany(..) => "FieldValueTooMany",
            Problem::NotFound(_) => "FieldValueNotFound",
        }
    }

    fn sentence(&self) -> String {
        match &self.problem {
            Problem::Required(detail) if detail.is_empty() => "Required value".to_owned(),
            Problem::Required(detail) => format!("Required value: {detail}"),
            Problem::Invalid(value, detail) | Problem::TypeInvalid(value, detail) => {
                format!("Invalid value: {value}: {detail}")
            }
            Problem::InvalidUnshown(detail) => format!("Invalid value: {detail}"),
            Problem::Unsupported(value, known) => {
                format!("Unsupported value: {value}: supported values: {}", known.join(", "))
            }
            Problem::Duplicate(value) => format!("Duplicate value: {value}"),
            Problem::Forbidden(detail) => format!("Forbidden: {detail}"),
            Problem::TooLong(limit) => format!("Too long: may not be more than {limit} bytes"),
            Problem::TooMany(actual, limit) => format!("Too many: {actual}: must have at most {limit} items"),
            Problem::NotFound(value) => format!("Not found: {value}"),
        }
    }

    fn cause(&self) -> Value {
        json!({"reason": self.reason(), "message": self.sentence(), "field": self.field})
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.field, self.sentence())
    }
}
