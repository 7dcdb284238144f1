//! Puts a claim's environment variables and volume claims into its own sandbox, as far as the
//! template allows.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Container, EnvVar, PodSpec};
use warren_api::blueprint::PersistentVolumeClaimTemplate;
use warren_api::claim::ClaimEnvVar;
use warren_api::template::InjectionPolicy;

use super::Trouble;

/// Returns the volume claim templates of the sandbox.
pub(super) fn volumes(
    policy: InjectionPolicy,
    template: &[PersistentVolumeClaimTemplate],
    claim: &[PersistentVolumeClaimTemplate],
) -> Result<Vec<PersistentVolumeClaimTemplate>, String> {
    check_names("template", template)?;
    let mut merged = template.to_vec();
    if claim.is_empty() {
        return Ok(merged);
    }
    if policy == InjectionPolicy::Disallowed {
        return Err("the template does not allow volumeClaimTemplates in a claim".to_owned());
    }
    check_names("claim", claim)?;
    for volume in claim {
        let name = &volume.metadata.name;
        match merged.iter_mut().find(|present| present.metadata.name == *name) {
            None => merged.push(volume.clone()),
            Some(present) if policy == InjectionPolicy::Overrides => *present = volume.clone(),
            Some(_) => {
                return Err(format!("volumeClaimTemplate {name} is in the template and cannot be replaced"));
            }
        }
    }
    Ok(merged)
}

/// Puts a claim's variables into the containers. Each container gets the variables that name it.
/// The first container also gets those that name none.
pub(super) fn environment(
    policy: InjectionPolicy,
    spec: &mut PodSpec,
    env: &[ClaimEnvVar],
) -> Result<(), Trouble> {
    if env.is_empty() {
        return Ok(());
    }
    if policy == InjectionPolicy::Disallowed {
        return Err(Trouble::EnvironmentRejected("the template does not allow env in a claim".to_owned()));
    }
    let target = |variable: &ClaimEnvVar| variable.container_name.clone().filter(|name| !name.is_empty());
    let named = env.iter().filter(|variable| target(variable).is_some());
    for variable in named.chain(env.iter().filter(|variable| target(variable).is_none())) {
        let container = match target(variable) {
            None => spec
                .containers
                .first_mut()
                .ok_or_else(|| Trouble::Error("the pod has no container".to_owned()))?,
            Some(name) => {
                let regular = spec.containers.iter_mut();
                let mut all = spec.init_containers.iter_mut().flatten().chain(regular);
                all.find(|container| container.name == name)
                    .ok_or_else(|| Trouble::Error(format!("no container is named {name}")))?
            }
        };
        inject(policy, container, variable)?;
    }
    Ok(())
}

fn inject(policy: InjectionPolicy, container: &mut Container, variable: &ClaimEnvVar) -> Result<(), Trouble> {
    let name = &container.name;
    if policy == InjectionPolicy::Allowed
        && container.env_from.as_ref().is_some_and(|sources| !sources.is_empty())
    {
        // The source could hold the same name. The decision cannot see which value would win.
        let text = format!("container {name} uses envFrom, so a claim may not add to its environment");
        return Err(Trouble::EnvironmentRejected(text));
    }
    let new = EnvVar { name: variable.name.clone(), value: Some(variable.value.clone()), value_from: None };
    let env = container.env.get_or_insert_default();
    match env.iter_mut().find(|present| present.name == variable.name) {
        None => env.push(new),
        Some(present) if policy == InjectionPolicy::Overrides => *present = new,
        Some(_) => {
            let text = format!("variable {} of container {name} is set already", variable.name);
            return Err(Trouble::Error(text));
        }
    }
    Ok(())
}

fn check_names(whose: &str, volumes: &[PersistentVolumeClaimTemplate]) -> Result<(), String> {
    let mut names = BTreeSet::new();
    for volume in volumes {
        let name = &volume.metadata.name;
        if name.is_empty() {
            return Err(format!("a volumeClaimTemplate of the {whose} has no name"));
        }
        if !names.insert(name) {
            return Err(format!("the {whose} has two volumeClaimTemplates named {name}"));
        }
    }
    Ok(())
}
