//! What can be set about the controllers. Names and defaults are those of agent-sandbox's controller flags.

/// Settings of all controllers.
#[derive(Clone, Debug)]
pub struct Config {
    /// Suffix of the service names in `status.serviceFQDN`.
    pub cluster_domain: String,
    /// Sandboxes that are reconciled at the same time.
    pub sandbox_concurrent_workers: usize,
    /// Whether only pods and services that carry the tracking label are watched. It saves memory where most pods of the
    /// cluster are not ours; a pod in the way without that label is then seen only when creating ours fails.
    pub cache_label_selectors: bool,
    /// Who reports events, besides the controller: usually the host or pod name.
    pub reporting_instance: String,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            cluster_domain: "cluster.local".to_owned(),
            sandbox_concurrent_workers: 100,
            cache_label_selectors: false,
            reporting_instance: "warren".to_owned(),
        }
    }
}
