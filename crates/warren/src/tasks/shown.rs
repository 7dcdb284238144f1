//! Formats tasks for the output.

use jiff::Timestamp;
use serde_json::{Value, json};
use warren_api::AgentTask;
use warren_api::conditions::{self, ConditionType, Reason};
use warren_client::kube::ResourceExt as _;

use crate::sandboxes::list::{age, cell, table as columns};

/// The progress of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Its command does not run yet.
    Pending,
    /// Its command runs.
    Running,
    /// It ended with exit code 0.
    Succeeded,
    /// It ended in another way.
    Failed,
}

impl State {
    /// Returns true if the task has ended.
    pub fn is_final(self) -> bool {
        matches!(self, State::Succeeded | State::Failed)
    }

    fn name(self) -> &'static str {
        match self {
            State::Pending => "Pending",
            State::Running => "Running",
            State::Succeeded => "Succeeded",
            State::Failed => "Failed",
        }
    }
}

/// Returns the progress of a task, from its conditions.
pub fn state(task: &AgentTask) -> State {
    let conditions = task.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let is = |type_| conditions::is_true(conditions, type_);
    if is(ConditionType::Succeeded) {
        State::Succeeded
    } else if is(ConditionType::Failed) {
        State::Failed
    } else if is(ConditionType::Running) {
        State::Running
    } else {
        State::Pending
    }
}

/// Returns the class of the failure, or the reason why the command does not run yet.
fn reason(task: &AgentTask) -> Option<&str> {
    let type_ = match state(task) {
        State::Failed => ConditionType::Failed,
        State::Pending => ConditionType::Running,
        State::Running | State::Succeeded => return None,
    };
    let conditions = &task.status.as_ref()?.conditions;
    conditions::find(conditions, type_).map(|condition| condition.reason.as_str())
}

/// Returns the task's own message.
pub fn message(task: &AgentTask) -> String {
    let message = task.status.as_ref().and_then(|status| status.message.clone());
    message.unwrap_or_else(|| "it has not been looked at yet".to_owned()).replace(char::is_control, " ")
}

/// Returns the result that the command left, for a terminal. Whatever could control the terminal or reorder its text becomes a space.
pub fn result(task: &AgentTask) -> Option<String> {
    let reorders =
        |c| matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let is_unsafe = |c: char| (c.is_control() && c != '\n' && c != '\t') || reorders(c);
    Some(task.status.as_ref()?.result.as_ref()?.replace(is_unsafe, " "))
}

/// Returns the exit code for a task that has ended.
pub fn exit_code(task: &AgentTask) -> i32 {
    let code = task.status.as_ref().and_then(|status| status.exit_code);
    match (state(task), code) {
        (State::Succeeded, _) => 0,
        (_, Some(code)) if code != 0 => code,
        _ if reason(task) == Some(Reason::Timeout.as_str()) => 124,
        _ => 1,
    }
}

/// Describes a task in one line.
pub fn sentence(task: &AgentTask) -> String {
    let (name, state) = (task.name_any(), state(task));
    let reason = reason(task).map(|reason| format!(" ({reason})")).unwrap_or_default();
    format!("{name}: {}{reason}: {}", state.name(), message(task))
}

/// Returns a task as JSON.
pub fn row(task: &AgentTask) -> Value {
    let status = task.status.clone().unwrap_or_default();
    json!({
        "namespace": task.namespace(),
        "name": task.name_any(),
        "state": state(task).name(),
        "reason": reason(task),
        "message": status.message,
        "exitCode": status.exit_code,
        "result": status.result,
        "attempts": status.attempts,
        "sandbox": status.sandbox_name,
        "created": task.metadata.creation_timestamp,
        "started": status.start_time,
        "completed": status.completion_time,
    })
}

/// Formats tasks as a table.
pub fn table(rows: &[Value], now: Timestamp) -> String {
    let rows: Vec<[String; 6]> = rows
        .iter()
        .map(|row| {
            let created = row["created"].as_str().and_then(|time| time.parse().ok());
            let age = created.map(|created| age(now, created)).unwrap_or_default();
            let [name, state, reason, exit, attempts] =
                ["name", "state", "reason", "exitCode", "attempts"].map(|key| cell(&row[key]));
            [name, state, reason, exit, attempts, age]
        })
        .collect();
    columns(&["NAME", "STATE", "REASON", "EXIT", "ATTEMPTS", "AGE"], &rows)
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    fn task(status: Value) -> AgentTask {
        let task = json!({"apiVersion": "warren.dev/v1alpha1", "kind": "AgentTask",
            "metadata": {"name": "mine", "namespace": "default", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"runner": {"command": ["true"]}}, "status": status});
        serde_json::from_value(task).expect("a task")
    }

    fn condition(type_: &str, status: &str, reason: &str) -> Value {
        json!({"type": type_, "status": status, "reason": reason, "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z"})
    }

    #[test]
    fn tasks_are_shown_in_columns() {
        let timeout = task(json!({"attempts": 1, "message": "It took\u{1b}[2J too long",
            "conditions": [condition("Failed", "True", "Timeout")]}));
        let code = task(
            json!({"attempts": 2, "exitCode": 7, "conditions": [condition("Failed", "True", "Application")]}),
        );
        let rows = [row(&task(json!({}))), row(&timeout), row(&code)];
        expect![[r#"
            NAME  STATE    REASON       EXIT  ATTEMPTS  AGE
            mine  Pending                     0         60s
            mine  Failed   Timeout            1         60s
            mine  Failed   Application  7     2         60s
        "#]]
        .assert_eq(&table(&rows, "2026-01-01T00:01:00Z".parse().expect("a time")));
        assert_eq!((exit_code(&timeout), exit_code(&code)), (124, 7));
        assert_eq!(sentence(&timeout), "mine: Failed (Timeout): It took [2J too long");
    }

    #[test]
    fn a_result_cannot_control_the_terminal() {
        let hostile = task(json!({"result": "{\n\t\"a\": \"\u{1b}]0;x\u{7}\u{9b}2J\u{202e}é\r\"}\u{0}"}));
        assert_eq!(result(&hostile).as_deref(), Some("{\n\t\"a\": \" ]0;x  2J é \"} "));
        assert_eq!(row(&hostile)["result"].as_str(), hostile.status.as_ref().unwrap().result.as_deref());
        assert_eq!(result(&task(json!({}))), None);
    }
}
