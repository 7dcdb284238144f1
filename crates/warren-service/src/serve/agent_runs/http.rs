//! The API of runs.

use std::path::PathBuf;
use std::sync::Arc;

use http::header::CONTENT_DISPOSITION;
use http::{HeaderValue, Response, StatusCode};
use jiff::Timestamp;
use serde_json::Value;

use super::{NewRun, Plan, Run, repository};
use crate::serve::Service;
use crate::serve::answer::{Body, Failure, bytes_response, data, data_with};
use crate::serve::request::Request;
use crate::serve::settings::{self, Defaults, Runner};

type Answer = Result<Response<Body>, Failure>;

/// Runs in a list, and as many as can be asked for.
const LISTED: u64 = 100;
const MOST_LISTED: u64 = 1000;

/// Begins a run.
pub async fn create(service: &Arc<Service>, request: Request) -> Answer {
    let new: NewRun = request.json().await?;
    let runner: Runner = settings::read(&service.database, settings::RUNNER).await?;
    let id = uuid::Uuid::new_v4().simple().to_string();
    let mut plan = Plan::new(new, &runner, id, Timestamp::now())?;
    let allowed: Vec<PathBuf> = settings::read(&service.database, settings::REPOSITORIES).await?;
    plan.find_repository(&repository::allowed(&allowed), &service.agent_runs.scratch).await?;
    if let Some(wanted) = plan.wanted.take() {
        let defaults: Defaults = settings::read(&service.database, settings::DEFAULTS).await?;
        plan.wanted = Some(settings::apply(wanted, &defaults));
    }
    let id = service.agent_runs.begin(plan).await?;
    data_with(StatusCode::CREATED, &service.agent_runs.find(&id).await?.shown())
}

/// Lists runs, the newest first.
pub async fn list(service: &Service, request: &Request) -> Answer {
    let limit = request.number("limit")?.unwrap_or(LISTED).clamp(1, MOST_LISTED);
    let runs = service.database.agent_runs(usize::try_from(limit).unwrap_or(usize::MAX)).await?;
    let shown: Vec<Value> = runs.iter().map(Run::shown).collect();
    data(&shown)
}

/// Shows one.
pub async fn one(service: &Service, id: &str) -> Answer {
    data(&service.agent_runs.find(id).await?.shown())
}

/// Sends the result of one as a patch.
pub async fn patch(service: &Service, id: &str) -> Answer {
    let run = service.agent_runs.find(id).await?;
    let none = || {
        let message = format!("agent run `{id}` has no commit: it changed nothing, or has not ended");
        Failure::new(StatusCode::NOT_FOUND, "AGENT_RUN_HAS_NO_COMMIT", message)
    };
    let repository = run.repository.as_ref().ok_or_else(none)?;
    let patch = repository.patch(&service.agent_runs.scratch).await?.ok_or_else(none)?;
    let mut response = bytes_response(StatusCode::OK, "text/x-diff", patch.into());
    let name = crate::serve::sandboxes::attachment(&format!("{id}.patch"));
    if let Ok(value) = HeaderValue::from_str(&name) {
        response.headers_mut().insert(CONTENT_DISPOSITION, value);
    }
    Ok(response)
}

/// Cancels one.
pub async fn cancel(service: &Service, id: &str) -> Answer {
    data(&service.agent_runs.cancel(id).await?.shown())
}

/// Forgets one with its session, and returns it as it was last.
pub async fn remove(service: &Service, id: &str) -> Answer {
    data(&service.agent_runs.remove(id).await?.shown())
}
