//! Shares equal pod specs among sandboxes. A spec is most of a sandbox's size, and the thousands of
//! sandboxes of one template have the same one.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use k8s_openapi::api::core::v1::PodSpec;

use crate::trim::fit;

/// The number of remembered specs: about as many as templates are in use at a time. One that is
/// dropped here stays with its sandboxes, but is not shared with later ones.
const MOST: usize = 16;

/// The most recent ones, the latest first.
static RECENT: Recent = Recent(Mutex::new(Vec::new()));

/// Replaces a spec by an equal one that is already in use.
pub(crate) fn share(spec: &mut Arc<PodSpec>) {
    RECENT.share(spec);
}

struct Recent(Mutex<Vec<Weak<PodSpec>>>);

impl Recent {
    fn share(&self, spec: &mut Arc<PodSpec>) {
        // A panic in between leaves a list of valid pointers.
        let mut recent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = recent.iter().position(|known| known.upgrade().is_some_and(|known| known == *spec));
        let shared = known.map(|index| recent.remove(index)).and_then(|known| known.upgrade());
        match shared {
            Some(shared) => *spec = shared,
            None => trim(Arc::make_mut(spec)),
        }
        recent.retain(|known| known.strong_count() > 0);
        recent.insert(0, Arc::downgrade(spec));
        recent.truncate(MOST);
    }
}

fn trim(spec: &mut PodSpec) {
    for container in spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten()) {
        fit(&mut container.env);
        fit(&mut container.ports);
        fit(&mut container.volume_mounts);
    }
    fit(&mut spec.volumes);
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use k8s_openapi::api::core::v1::PodSpec;

    use super::{MOST, Recent};

    #[test]
    fn equal_specifications_are_one_while_they_are_in_use() {
        let recent = Recent(Mutex::default());
        let spec = |name: &str| {
            let mut spec = Arc::new(PodSpec { hostname: Some(name.to_owned()), ..PodSpec::default() });
            recent.share(&mut spec);
            spec
        };
        let first = spec("a");
        assert!(Arc::ptr_eq(&first, &spec("a")));
        assert!(!Arc::ptr_eq(&first, &spec("b")), "another one is its own");
        let others: Vec<_> = (0..MOST).map(|number| spec(&number.to_string())).collect();
        let late = spec("a");
        assert!(!Arc::ptr_eq(&first, &late), "after many others it is forgotten");
        assert_eq!(first, late);
        drop(others);
    }
}
