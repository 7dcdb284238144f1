//! Parses DNS names inside a home.

/// The domain that all names inside a home end in.
pub const CLUSTER_DOMAIN: &str = "cluster.local";

/// A name inside a home.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Name {
    /// A service, for all its pods: `SERVICE.NAMESPACE.svc.cluster.local`.
    Service {
        /// Its name.
        service: String,
        /// Its namespace.
        namespace: String,
    },
    /// One pod of a service, by its host name: `HOST.SERVICE.NAMESPACE.svc.cluster.local`.
    Host {
        /// The pod's host name.
        host: String,
        /// The service's name.
        service: String,
        /// The namespace of both.
        namespace: String,
    },
    /// A name inside the home that cannot exist.
    Unknown,
}

/// Parses a name; `None` if it is outside the home.
pub fn parse(name: &str) -> Option<Name> {
    let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
    if name == CLUSTER_DOMAIN {
        return Some(Name::Unknown);
    }
    let inside = name.strip_suffix(CLUSTER_DOMAIN)?.strip_suffix('.')?;
    let labels: Vec<&str> = inside.split('.').collect();
    Some(match labels[..] {
        [service, namespace, "svc"] => {
            Name::Service { service: service.to_owned(), namespace: namespace.to_owned() }
        }
        [host, service, namespace, "svc"] => {
            Name::Host { host: host.to_owned(), service: service.to_owned(), namespace: namespace.to_owned() }
        }
        _ => Name::Unknown,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_inside_are_told_from_others() {
        let service = Name::Service { service: "box".to_owned(), namespace: "team".to_owned() };
        assert_eq!(parse("Box.team.svc.cluster.local."), Some(service));
        let host =
            Name::Host { host: "a".to_owned(), service: "box".to_owned(), namespace: "team".to_owned() };
        assert_eq!(parse("a.box.team.svc.cluster.local"), Some(host));
        assert_eq!(parse("team.svc.cluster.local"), Some(Name::Unknown));
        assert_eq!(parse("cluster.local"), Some(Name::Unknown));
        assert_eq!(parse("github.com"), None);
        assert_eq!(parse("evilcluster.local"), None);
    }
}
