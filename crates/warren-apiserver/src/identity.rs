/// Who makes a request. It travels as an extension of the request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The user's name, such as `system:admin`.
    pub user: String,
    /// The groups the user is in.
    pub groups: Vec<String>,
}

impl Identity {
    /// A user in the given groups; every authenticated user is also in `system:authenticated`.
    pub fn new(user: impl Into<String>, groups: impl IntoIterator<Item = String>) -> Identity {
        let mut groups: Vec<String> = groups.into_iter().collect();
        let everyone = "system:authenticated";
        if !groups.iter().any(|group| group == everyone) {
            groups.push(everyone.to_owned());
        }
        Identity { user: user.into(), groups }
    }

    /// The administrator: whoever may use the machine as root, or holds the admin certificate.
    pub fn admin() -> Identity {
        Identity::new("system:admin", ["system:masters".to_owned()])
    }
}
