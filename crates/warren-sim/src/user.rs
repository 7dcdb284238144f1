//! The simulated user: makes, changes and deletes claims, pools, templates and sandboxes, and also
//! does what users should not do (deletes pods, holds objects with finalizers, removes owners).
//! There are few names, so that they are reused.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};
use warren_api::{AgentTask, Sandbox, SandboxClaim, SandboxTemplate, SandboxWarmPool, annotations};
use warren_decide::ownership;
use warren_decide::step::{Kind, Propagation};

use crate::object::{Any, Typed};
use crate::random::Random;
use crate::server::{Caller, Part, Preconditions, Server};
use crate::tasks;

const CLAIMS: [&str; 8] = ["c0", "c1", "c2", "c3", "c4", "c5", "c6", "c7"];
const POOLS: [&str; 2] = ["p0", "p1"];
const TEMPLATES: [&str; 2] = ["t0", "t1"];
const SANDBOXES: [&str; 2] = ["s0", "s1"];
/// A finalizer of the user's own.
pub const HOLD: &str = "example.com/hold";

#[derive(Clone, Copy, Debug)]
enum Act {
    CreateClaims,
    DeleteClaim,
    EditClaim,
    CreatePool,
    ScalePool,
    EditPool,
    DeletePool,
    CreateTemplate,
    EditTemplate,
    DeleteTemplate,
    CreateSandbox,
    DeleteSandbox,
    SwitchSandbox,
    SwitchService,
    TimeSandbox,
    DeletePod,
    Hold,
    Release,
    TakeOwnerOff,
}

const WEIGHTS: [(Act, u64); 19] = [
    (Act::CreateClaims, 20),
    (Act::DeleteClaim, 12),
    (Act::EditClaim, 4),
    (Act::CreatePool, 4),
    (Act::ScalePool, 6),
    (Act::EditPool, 2),
    (Act::DeletePool, 1),
    (Act::CreateTemplate, 4),
    (Act::EditTemplate, 4),
    (Act::DeleteTemplate, 1),
    (Act::CreateSandbox, 3),
    (Act::DeleteSandbox, 2),
    (Act::SwitchSandbox, 4),
    (Act::SwitchService, 2),
    (Act::TimeSandbox, 3),
    (Act::DeletePod, 2),
    (Act::Hold, 3),
    (Act::Release, 2),
    (Act::TakeOwnerOff, 1),
];

/// The user.
pub struct User<'a> {
    /// The server.
    pub server: &'a mut Server,
    /// The random numbers.
    pub random: &'a mut Random,
    /// The true time.
    pub now: Timestamp,
    /// True if tasks are used.
    pub tasks: bool,
}

impl User<'_> {
    /// Creates the initial objects.
    pub fn begin(&mut self) {
        for (template, pool) in TEMPLATES.iter().zip(POOLS) {
            self.create_template(template);
            if self.random.chance(800) {
                self.create_pool(pool);
            }
        }
    }

    /// Acts once. Returns a line for the trace.
    pub fn act(&mut self) -> String {
        if self.tasks && self.random.chance(350) {
            let what = self.act_on_tasks();
            return format!("user: {}", what.unwrap_or_else(|| "(no task to do it to)".to_owned()));
        }
        let index = self.random.weighted(WEIGHTS.iter().map(|(_, weight)| *weight)).unwrap_or_default();
        let act = WEIGHTS[index].0;
        let what = match act {
            Act::CreateClaims => {
                let made: Vec<String> =
                    (0..self.random.within(1..4)).filter_map(|_| self.create_claim()).collect();
                (!made.is_empty()).then(|| made.join(", "))
            }
            Act::DeleteClaim => self.delete_one(Kind::SandboxClaim),
            Act::EditClaim => self.edit_claim(),
            Act::CreatePool => self.pick(&POOLS).and_then(|name| self.create_pool(name)),
            Act::ScalePool => self.one(Kind::SandboxWarmPool).and_then(|pool| {
                let replicas = self.random.below(5);
                self.edit(&pool, &json!({"spec": {"replicas": replicas}}))
            }),
            Act::EditPool => self.edit_pool(),
            Act::DeletePool => self.delete_one(Kind::SandboxWarmPool),
            Act::CreateTemplate => self.pick(&TEMPLATES).and_then(|name| self.create_template(name)),
            Act::EditTemplate => self.edit_template(),
            Act::DeleteTemplate => self.delete_one(Kind::SandboxTemplate),
            Act::CreateSandbox => self.create_sandbox(),
            Act::DeleteSandbox => self.delete_one(Kind::Sandbox),
            Act::SwitchSandbox => self.one(Kind::Sandbox).and_then(|sandbox| {
                let mode = self.pick(&["Suspended", "Running", "Running"])?;
                self.edit(&sandbox, &json!({"spec": {"operatingMode": mode}}))
            }),
            Act::SwitchService => self.one(Kind::Sandbox).and_then(|sandbox| {
                let service = self.pick(&[None, Some(true), Some(false)])?;
                self.edit(&sandbox, &json!({"spec": {"service": service}}))
            }),
            Act::TimeSandbox => self.one(Kind::Sandbox).and_then(|sandbox| {
                let (time, policy) = (self.a_time(), self.pick(&["Delete", "Retain"])?);
                self.edit(&sandbox, &json!({"spec": {"shutdownTime": time, "shutdownPolicy": policy}}))
            }),
            Act::DeletePod => self.delete_one(Kind::Pod),
            Act::Hold => self.hold(),
            Act::Release => self.release_one(),
            Act::TakeOwnerOff => self.take_owner_off(),
        };
        format!("user: {act:?} {}", what.unwrap_or_else(|| "(nothing to do it to)".to_owned()))
    }

    fn act_on_tasks(&mut self) -> Option<String> {
        match self.random.below(10) {
            0 => self.delete_one(Kind::AgentTask),
            1 => {
                let task = self.one(Kind::AgentTask)?;
                self.edit(&task, &json!({"spec": {"cancel": true}}))
            }
            2 => {
                let task = self.one(Kind::AgentTask)?;
                let seconds = self.random.below(120);
                self.edit(&task, &json!({"spec": {"ttlSecondsAfterFinished": seconds}}))
            }
            _ => {
                let name = self.pick(&tasks::NAMES)?;
                let spec = tasks::spec(self.random);
                self.create::<AgentTask>(name, spec)
            }
        }
    }

    /// Interferes with a claim that is about to adopt a sandbox: moves it to the other pool, or
    /// scales its pool to zero. Returns a line for the trace.
    pub fn interfere(&mut self, claim: &str) -> String {
        let what = self.server.get(Kind::SandboxClaim, claim).cloned().and_then(|claim| {
            let pool = SandboxClaim::of(&claim)?.spec.warm_pool_ref.name.clone();
            if self.random.chance(500) {
                let other = POOLS.into_iter().find(|other| *other != pool)?;
                self.edit(&claim, &json!({"spec": {"warmPoolRef": {"name": other}}}))
            } else {
                let pool = self.server.get(Kind::SandboxWarmPool, &pool)?.clone();
                self.edit(&pool, &json!({"spec": {"replicas": 0}}))
            }
        });
        format!("user: interferes with {claim}: {}", what.unwrap_or_else(|| "(it cannot be)".to_owned()))
    }

    /// Removes all of the user's finalizers.
    pub fn release_all(&mut self) {
        while self.release_one().is_some() {}
    }

    fn create_claim(&mut self) -> Option<String> {
        let name = self.pick(&CLAIMS)?;
        let pool = if self.random.chance(30) { "p9" } else { self.pick(&POOLS)? };
        let mut spec = json!({"warmPoolRef": {"name": pool}});
        if self.random.chance(250) {
            spec["lifecycle"] = self.a_lifecycle()?;
        }
        if self.random.chance(100) {
            spec["env"] = json!([{"name": "A", "value": "b"}]);
        }
        if self.random.chance(100) {
            let key =
                if self.random.chance(700) { "sandbox.users.io/team" } else { "forbidden.example/team" };
            spec["additionalPodMetadata"] = json!({"labels": {key: "a"}});
        }
        let deadline = self.pick(&["20s", "3m", "0s", "soon"])?;
        let annotations = match self.random.chance(100) {
            true => json!({annotations::DEADLINE: deadline}),
            false => json!({}),
        };
        self.create_annotated::<SandboxClaim>(name, annotations, spec)
    }

    fn edit_claim(&mut self) -> Option<String> {
        let claim = self.one(Kind::SandboxClaim)?;
        let body = match self.random.below(4) {
            0 => json!({"spec": {"warmPoolRef": {"name": self.pick(&POOLS)?}}}),
            1 => json!({"spec": {"lifecycle": null}}),
            _ => json!({"spec": {"lifecycle": self.a_lifecycle()?}}),
        };
        self.edit(&claim, &body)
    }

    fn a_lifecycle(&mut self) -> Option<Value> {
        let policy = self.pick(&["Delete", "DeleteForeground", "Retain"])?;
        let mut lifecycle = json!({"shutdownPolicy": policy});
        if self.random.chance(700) {
            lifecycle["shutdownTime"] = self.a_time();
        }
        if self.random.chance(400) {
            lifecycle["ttlSecondsAfterFinished"] = json!(self.random.below(20));
        }
        Some(lifecycle)
    }

    /// Returns a time: soon, later, or none.
    fn a_time(&mut self) -> Value {
        let seconds = match self.random.below(4) {
            0 => return Value::Null,
            1 => self.random.within(0..3),
            2 => self.random.within(1..60),
            _ => self.random.within(60..1_200),
        };
        let time = self.now.checked_add(Duration::from_secs(seconds)).unwrap_or(self.now);
        json!(time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string())
    }

    fn create_pool(&mut self, name: &str) -> Option<String> {
        let (template, replicas) = (self.pick(&TEMPLATES)?, self.random.below(5));
        let strategy = self.pick(&["Recreate", "OnReplenish"])?;
        let spec = json!({
            "replicas": replicas, "sandboxTemplateRef": {"name": template}, "updateStrategy": {"type": strategy},
        });
        let annotations = match self.random.chance(250) {
            true => json!({annotations::UPDATE_STRATEGY: "RollingUpdate"}),
            false => json!({}),
        };
        self.create_annotated::<SandboxWarmPool>(name, annotations, spec)
    }

    fn edit_pool(&mut self) -> Option<String> {
        let pool = self.one(Kind::SandboxWarmPool)?;
        let body = match self.random.chance(500) {
            true => json!({"spec": {"updateStrategy": {"type": self.pick(&["Recreate", "OnReplenish"])?}}}),
            false => json!({"spec": {"sandboxTemplateRef": {"name": self.pick(&TEMPLATES)?}}}),
        };
        self.edit(&pool, &body)
    }

    fn create_template(&mut self, name: &str) -> Option<String> {
        // Its pods can be given the command of a task.
        let field = json!({"fieldPath": format!("metadata.annotations['{}']", annotations::TASK_COMMAND)});
        let items = json!([{"path": "command", "fieldRef": field}]);
        let mut spec = json!({"podTemplate": {"spec": {
            "containers": [{"name": "main", "image": "v0"}], "restartPolicy": "Never",
            "volumes": [{"name": "task", "downwardAPI": {"items": items}}]}}});
        if self.random.chance(200) {
            spec["volumeClaimTemplates"] = json!([{"metadata": {"name": "data"}, "spec": {}}]);
        }
        if self.random.chance(300) {
            spec["service"] = json!(self.random.chance(700));
        }
        spec["envVarsInjectionPolicy"] = json!(self.pick(&["Allowed", "Disallowed"])?);
        self.create::<SandboxTemplate>(name, spec)
    }

    fn edit_template(&mut self) -> Option<String> {
        let template = self.one(Kind::SandboxTemplate)?;
        let number = self.random.below(4);
        let body = match self.random.below(5) {
            0 => json!({"spec": {"podTemplate": {"metadata": {"labels": {"edition": number.to_string()}}}}}),
            1 => json!({"spec": {"networkPolicyManagement": self.pick(&["Managed", "Unmanaged"])?}}),
            2 => {
                let service = self.pick(&[None, Some(true), Some(false)])?;
                json!({"spec": {"service": service}})
            }
            _ => {
                let containers = json!([{"name": "main", "image": format!("v{number}")}]);
                json!({"spec": {"podTemplate": {"spec": {"containers": containers}}}})
            }
        };
        self.edit(&template, &body)
    }

    fn create_sandbox(&mut self) -> Option<String> {
        // Sometimes one with a claim's name.
        let name = if self.random.chance(150) { self.pick(&CLAIMS)? } else { self.pick(&SANDBOXES)? };
        let mut spec = json!({"podTemplate": {"spec": {"containers": [{"name": "main", "image": "v0"}]}}});
        if self.random.chance(300) {
            spec["shutdownTime"] = self.a_time();
            spec["shutdownPolicy"] = json!(self.pick(&["Delete", "Retain"])?);
        }
        if self.random.chance(300) {
            spec["service"] = json!(true);
        }
        self.create::<Sandbox>(name, spec)
    }

    fn hold(&mut self) -> Option<String> {
        let kind = self.pick(&[Kind::Sandbox, Kind::Sandbox, Kind::Pod])?;
        let object = self.one(kind)?;
        if object.is_deleting() {
            return None;
        }
        self.edit(&object, &json!({"metadata": {"finalizers": [HOLD]}}))
    }

    fn release_one(&mut self) -> Option<String> {
        let held: Vec<(Kind, String)> = [Kind::Sandbox, Kind::Pod]
            .into_iter()
            .flat_map(|kind| self.server.all(kind).map(move |object| (kind, object.name().to_owned())))
            .filter(|(kind, name)| self.server.finalizers(*kind, name).iter().any(|held| held == HOLD))
            .collect();
        let index = usize::try_from(self.random.below(held.len() as u64)).ok()?;
        let (kind, name) = held.get(index)?;
        let rest: Vec<String> =
            self.server.finalizers(*kind, name).into_iter().filter(|held| held != HOLD).collect();
        let body = json!({"metadata": {"finalizers": rest}});
        let _ = self.server.merge(Caller::User, *kind, name, &body, Part::All);
        Some(format!("{kind} {name}"))
    }

    fn take_owner_off(&mut self) -> Option<String> {
        let pooled: Vec<Any> = self
            .server
            .all(Kind::Sandbox)
            .filter(|object| ownership::is_pooled(object.meta()))
            .cloned()
            .collect();
        let index = usize::try_from(self.random.below(pooled.len() as u64)).ok()?;
        let object = pooled.get(index)?;
        self.edit(object, &json!({"metadata": {"ownerReferences": null}}))
    }

    fn delete_one(&mut self, kind: Kind) -> Option<String> {
        let object = self.one(kind)?;
        let propagation = match self.random.chance(300) {
            true => Propagation::Foreground,
            false => Propagation::Background,
        };
        let (name, preconditions) = (object.name(), Preconditions::default());
        let _ = self.server.delete(Caller::User, kind, name, preconditions, propagation, self.now);
        Some(format!("{kind} {name} {propagation:?}"))
    }

    fn create<K: Typed>(&mut self, name: &str, spec: Value) -> Option<String> {
        self.create_annotated::<K>(name, json!({}), spec)
    }

    fn create_annotated<K>(&mut self, name: &str, annotations: Value, spec: Value) -> Option<String>
    where
        K: Typed,
    {
        // Converted to the typed object and back, so that defaults are filled in as on a server.
        let value = json!({
            "apiVersion": K::api_version(&()), "kind": K::kind(&()), "metadata": {"name": name, "annotations": annotations},
            "spec": spec,
        });
        let object: K = serde_json::from_value(value).ok()?;
        let value = serde_json::to_value(object).ok()?;
        let text = format!("{} {name} {}", K::KIND, value["spec"]);
        self.server.create(Caller::User, K::KIND, value, 0, self.now).ok()?;
        Some(text)
    }

    fn edit(&mut self, object: &Any, body: &Value) -> Option<String> {
        let _ = self.server.merge(Caller::User, object.kind(), object.name(), body, Part::All);
        Some(format!("{} {} {body}", object.kind(), object.name()))
    }

    fn one(&mut self, kind: Kind) -> Option<Any> {
        let count = self.server.all(kind).count();
        let index = usize::try_from(self.random.below(count as u64)).ok()?;
        self.server.all(kind).nth(index).cloned()
    }

    fn pick<T: Copy>(&mut self, choices: &[T]) -> Option<T> {
        self.random.pick(choices)
    }
}
