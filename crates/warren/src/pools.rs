//! Runs `warren pool` and `warren template`.

mod arguments;

use anyhow::Context as _;
use jiff::Timestamp;
use serde_json::{Value, json};
use warren_api::pool::SandboxTemplateReference;
use warren_api::template::SandboxTemplateSpec;
use warren_api::{SandboxTemplate, SandboxWarmPool, SandboxWarmPoolSpec};
use warren_client::kube::api::{
    Api, DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions,
};
use warren_client::kube::{Client, ResourceExt as _};

use crate::cli::{Format, Output, Place};
use crate::config::Layer;
use crate::destination::Destination;
use crate::run::wanted;
use crate::sandboxes::list::{age, cell, table};

pub use arguments::{Pool, Template};
use arguments::{PoolCommand, TemplateCommand};

async fn reach(place: &Place) -> anyhow::Result<(Client, Destination)> {
    let destination = Destination::choose(place, Layer::new())?;
    Ok((destination.connect().await?, destination))
}

/// Runs a subcommand of `pool`.
pub async fn pool(arguments: &Pool) -> anyhow::Result<i32> {
    match &arguments.command {
        PoolCommand::List { place, output } => {
            let (client, destination) = reach(place).await?;
            let pools: Api<SandboxWarmPool> = Api::namespaced(client, &destination.namespace);
            let pools = pools.list(&ListParams::default()).await.context("list pools")?;
            print_pools(&pools.items.iter().map(row).collect::<Vec<_>>(), *output, "pools");
        }
        PoolCommand::Create { place, name, template, replicas } => {
            let (client, destination) = reach(place).await?;
            let spec = SandboxWarmPoolSpec {
                replicas: replicas.replicas,
                sandbox_template_ref: SandboxTemplateReference { name: template.clone() },
                update_strategy: None,
            };
            let templates: Api<SandboxTemplate> = Api::namespaced(client.clone(), &destination.namespace);
            let known = templates.get_opt(template).await.context("find the template")?;
            anyhow::ensure!(
                known.is_some(),
                "there is no SandboxTemplate `{template}` in namespace `{}`; `warren template create` makes one",
                destination.namespace
            );
            let pools: Api<SandboxWarmPool> = Api::namespaced(client, &destination.namespace);
            let pool = SandboxWarmPool::new(name, spec);
            pools
                .create(&PostParams::default(), &pool)
                .await
                .with_context(|| format!("create pool `{name}`"))?;
            println!("{name}");
        }
        PoolCommand::Scale { place, name, replicas } => {
            let (client, destination) = reach(place).await?;
            let pools: Api<SandboxWarmPool> = Api::namespaced(client, &destination.namespace);
            let patch = json!({ "spec": { "replicas": replicas.replicas } });
            let scaled = pools.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await;
            scaled.with_context(|| format!("scale pool `{name}`"))?;
            println!("{name}");
        }
        PoolCommand::Status { place, name, output } => {
            let (client, destination) = reach(place).await?;
            let pools: Api<SandboxWarmPool> = Api::namespaced(client, &destination.namespace);
            let pool = pools.get(name).await.with_context(|| format!("read pool `{name}`"))?;
            let row = row(&pool);
            let full = row["ready"].as_i64() >= row["wanted"].as_i64();
            match output.output {
                Format::Json => println!("{row}"),
                Format::Text => print_pools(&[row], *output, "pools"),
            }
            return Ok(i32::from(!full));
        }
        PoolCommand::Delete { place, name } => {
            let (client, destination) = reach(place).await?;
            let pools: Api<SandboxWarmPool> = Api::namespaced(client, &destination.namespace);
            let pool = pools.get(name).await.with_context(|| format!("find pool `{name}`"))?;
            let deleted = pools.delete(name, &exactly(pool.uid())).await;
            deleted.with_context(|| format!("delete pool `{name}`"))?;
            println!("{name}");
        }
    }
    Ok(0)
}

/// Returns the precondition that only the object that was read is deleted.
fn exactly(uid: Option<String>) -> DeleteParams {
    DeleteParams {
        preconditions: Some(Preconditions { uid, resource_version: None }),
        ..DeleteParams::default()
    }
}

fn row(pool: &SandboxWarmPool) -> Value {
    let status = pool.status.clone().unwrap_or_default();
    json!({
        "name": pool.name_any(),
        "template": pool.spec.sandbox_template_ref.name,
        "wanted": pool.spec.replicas,
        "waiting": status.replicas,
        "ready": status.ready_replicas,
        "created": pool.metadata.creation_timestamp,
    })
}

fn print_pools(rows: &[Value], output: Output, name: &str) {
    match output.output {
        Format::Json => println!("{}", json!({ name: rows })),
        Format::Text => {
            let rows = rows.iter().map(|row| {
                let [name, template, wanted, ready] =
                    ["name", "template", "wanted", "ready"].map(|key| cell(&row[key]));
                [name, template, ready, wanted, age_of(row)]
            });
            print!("{}", table(&["NAME", "TEMPLATE", "READY", "WANTED", "AGE"], &rows.collect::<Vec<_>>()));
        }
    }
}

fn age_of(row: &Value) -> String {
    let created = row["created"].as_str().and_then(|time| time.parse().ok());
    created.map(|created| age(Timestamp::now(), created)).unwrap_or_default()
}

/// Runs a subcommand of `template`.
pub async fn template(arguments: &Template) -> anyhow::Result<i32> {
    match &arguments.command {
        TemplateCommand::List { place, output } => {
            let (client, destination) = reach(place).await?;
            let templates: Api<SandboxTemplate> = Api::namespaced(client, &destination.namespace);
            let templates = templates.list(&ListParams::default()).await.context("list templates")?;
            let rows: Vec<Value> = templates.items.iter().map(template_row).collect();
            match output.output {
                Format::Json => println!("{}", json!({ "templates": rows })),
                Format::Text => {
                    let rows = rows.iter().map(|row| [cell(&row["name"]), cell(&row["images"]), age_of(row)]);
                    print!("{}", table(&["NAME", "IMAGES", "AGE"], &rows.collect::<Vec<_>>()));
                }
            }
        }
        TemplateCommand::Create(create) => {
            let destination = Destination::choose(&create.place, Layer::new())?;
            let of = create.sandbox.wanted(&destination)?;
            let client = destination.connect().await?;
            let spec = SandboxTemplateSpec { blueprint: of.spec.blueprint, ..SandboxTemplateSpec::default() };
            let templates: Api<SandboxTemplate> = Api::namespaced(client, &destination.namespace);
            let (name, template) = (&create.name, SandboxTemplate::new(&create.name, spec));
            let made = templates.create(&PostParams::default(), &template).await;
            made.with_context(|| format!("create template `{name}`"))?;
            println!("{name}");
        }
        TemplateCommand::Delete { place, name } => {
            let (client, destination) = reach(place).await?;
            let pools: Api<SandboxWarmPool> = Api::namespaced(client.clone(), &destination.namespace);
            let pools = pools.list(&ListParams::default()).await.context("list pools")?.items;
            if let Some(user) = pools.iter().find(|pool| pool.spec.sandbox_template_ref.name == *name) {
                anyhow::bail!("pool `{}` makes its sandboxes from template `{name}`", user.name_any());
            }
            let templates: Api<SandboxTemplate> = Api::namespaced(client, &destination.namespace);
            let template = templates.get(name).await.with_context(|| format!("find template `{name}`"))?;
            let deleted = templates.delete(name, &exactly(template.uid())).await;
            deleted.with_context(|| format!("delete template `{name}`"))?;
            println!("{name}");
        }
    }
    Ok(0)
}

fn template_row(template: &SandboxTemplate) -> Value {
    let containers = &template.spec.blueprint.pod_template.spec.containers;
    let images: Vec<&str> = containers.iter().filter_map(|container| container.image.as_deref()).collect();
    json!({
        "name": template.name_any(),
        "images": images.join(", "),
        "created": template.metadata.creation_timestamp,
    })
}

impl arguments::Of {
    /// Returns the sandbox that the flags describe.
    fn wanted(&self, destination: &Destination) -> anyhow::Result<warren_api::Sandbox> {
        let (local, hosts) = (destination.is_local(), destination.config.hosts(&self.allow_host));
        let image = self.image.as_deref().or(local.then_some(wanted::HOST_IMAGE));
        let image = image.context("on a cluster, name the image: `--image`")?;
        let description = wanted::Description {
            image,
            memory: self.memory.as_deref(),
            cpus: self.cpus.as_deref(),
            disk: self.disk.as_deref(),
            runtime: self.runtime.as_deref(),
            network: self.network,
            hosts: &hosts,
            ports: &self.allow_port,
            workdir: self.workdir.as_deref(),
        };
        description.sandbox(local)
    }
}
