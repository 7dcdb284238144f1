//! Builds the task that `warren task submit` creates.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{EnvVar, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use warren_api::task::{Repository, TaskDescription, TaskRunner};
use warren_api::{AgentTask, AgentTaskSpec};

use super::arguments::Submit;
use super::whole_seconds;
use crate::{environment, words};

/// Returns the task.
pub fn wanted(arguments: &Submit) -> anyhow::Result<AgentTask> {
    let env = environment::variables(&arguments.env, false, |name| std::env::var(name).ok())?;
    // A dollar sign would begin a reference to another variable.
    let env = env.into_iter().map(|(name, value)| EnvVar {
        name,
        value: Some(value.replace('$', "$$")),
        value_from: None,
    });
    let limits: BTreeMap<String, Quantity> = [("memory", &arguments.memory), ("cpu", &arguments.cpus)]
        .into_iter()
        .filter_map(|(name, amount)| Some((name.to_owned(), Quantity(amount.clone()?))))
        .collect();
    let mut runner = TaskRunner {
        sandbox_template_name: arguments.template.clone(),
        image: arguments.image.clone(),
        warm_pool_name: arguments.pool.clone(),
        command: escaped(words::program(&arguments.command)),
        env: env.collect(),
        resources: (!limits.is_empty())
            .then(|| ResourceRequirements { limits: Some(limits), ..ResourceRequirements::default() }),
        ..TaskRunner::default()
    };
    if let Some(timeout) = arguments.timeout {
        runner.timeout = format!("{}s", whole_seconds("--timeout", timeout)?);
    }
    let ttl = arguments.ttl.map(|ttl| whole_seconds("--ttl", ttl)).transpose()?;
    let repository = arguments
        .repository
        .clone()
        .map(|url| Repository { url, reference: arguments.reference.clone().unwrap_or_default() });
    let told = TaskDescription {
        description: arguments.description.clone().unwrap_or_default(),
        context: arguments.task_context.clone().unwrap_or_default(),
        repository,
    };
    let spec = AgentTaskSpec {
        task: (told != TaskDescription::default()).then_some(told),
        runner,
        retries: arguments.retries,
        keep_on_failure: arguments.keep_on_failure,
        ttl_seconds_after_finished: ttl.map(i32::try_from).transpose()?,
        cancel: false,
    };
    let mut task = AgentTask::new("", spec);
    match &arguments.name {
        Some(name) => task.metadata.name = Some(name.clone()),
        None => {
            task.metadata.name = None;
            task.metadata.generate_name = Some("task-".to_owned());
        }
    }
    Ok(task)
}

/// Keeps Kubernetes from expanding `$(NAME)` and `$$` in a command: both are for the shell.
fn escaped(words: Vec<String>) -> Vec<String> {
    words.into_iter().map(|word| word.replace('$', "$$")).collect()
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use expect_test::expect;

    use crate::cli::{Cli, Command};
    use crate::tasks::arguments::TaskCommand;

    fn wanted(words: &[&str]) -> Result<String, String> {
        let words = ["warren", "task", "submit"].iter().chain(words);
        let cli = Cli::try_parse_from(words).map_err(|error| error.to_string())?;
        let Command::Task(task) = cli.command else { panic!("a task") };
        let TaskCommand::Submit(arguments) = task.command else { panic!("a submission") };
        let wanted = super::wanted(&arguments).map_err(|error| error.to_string())?;
        Ok(serde_json::to_string(&wanted).expect("JSON"))
    }

    #[test]
    fn options_become_the_fields_of_a_task() {
        let words = [
            "--name=mine",
            "--template=agent",
            "--timeout=90",
            "--env=A=$x",
            "--description=do it",
            "--repository=u",
            "--ref=main",
            "--memory=64Mi",
            "--retries=2",
            "--ttl=1m",
            "--",
            "echo",
            "$(date) $A $$",
        ];
        expect![[r#"{"apiVersion":"warren.dev/v1alpha1","kind":"AgentTask","metadata":{"name":"mine"},"spec":{"task":{"description":"do it","repository":{"url":"u","ref":"main"}},"runner":{"sandboxTemplateName":"agent","command":["echo","$$(date) $$A $$$$"],"env":[{"name":"A","value":"$$x"}],"timeout":"90s","resources":{"limits":{"memory":"64Mi"}}},"retries":2,"keepOnFailure":false,"ttlSecondsAfterFinished":60,"cancel":false}}"#]]
        .assert_eq(&wanted(&words).expect("a task"));
    }

    #[test]
    fn what_cannot_be_meant_is_refused_by_the_name_of_its_option() {
        assert!(
            wanted(&["--timeout=1.5s", "true"])
                .expect_err("refused")
                .contains("`--timeout` takes whole seconds")
        );
        assert!(wanted(&["--env=SECRET_KEY=x", "true"]).expect_err("refused").contains("`--env SECRET_KEY`"));
        assert!(wanted(&["--image=a", "--template=b"]).expect_err("refused").contains("cannot be used with"));
        for other in ["--image=a", "--template=b", "--memory=1Gi", "--cpus=1"] {
            let refused = wanted(&["--pool=p", other, "true"]).expect_err("refused");
            assert!(refused.contains("cannot be used with"), "{refused}");
        }
        assert!(wanted(&["--pool=p"]).expect_err("refused").contains("<COMMAND>"));
        let pooled = wanted(&["--pool=p", "--", "true"]).expect("a task");
        assert!(pooled.contains(r#""runner":{"warmPoolName":"p","command":["true"]"#), "{pooled}");
        assert!(wanted(&[]).expect_err("refused").contains("<COMMAND>"));
        assert!(wanted(&["--retries=11", "true"]).expect_err("refused").contains("--retries"));
    }
}
