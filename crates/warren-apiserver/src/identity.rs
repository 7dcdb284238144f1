/// The group of everybody who is known at all.
pub(crate) const EVERYONE: &str = "system:authenticated";
/// The group of those who may do everything, whatever roles say.
const MASTERS: &str = "system:masters";

/// Who makes a request. It travels as an extension of the request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The user's name, such as `system:admin`.
    pub user: String,
    /// The groups the user is in.
    pub groups: Vec<String>,
    /// What tells the user from an earlier one of the same name: service accounts have one.
    pub uid: Option<String>,
    /// What else is known, by key.
    pub extra: Vec<(String, Vec<String>)>,
}

impl Identity {
    /// A user in the given groups; every authenticated user is also in `system:authenticated`.
    pub fn new(user: impl Into<String>, groups: impl IntoIterator<Item = String>) -> Identity {
        let mut groups: Vec<String> = groups.into_iter().collect();
        if !groups.iter().any(|group| group == EVERYONE) {
            groups.push(EVERYONE.to_owned());
        }
        Identity { user: user.into(), groups, uid: None, extra: Vec::new() }
    }

    /// The administrator: whoever may use the machine as root, or holds the admin certificate.
    pub fn admin() -> Identity {
        Identity::new("system:admin", [MASTERS.to_owned()])
    }

    /// Whether everything is allowed without a look at roles.
    pub(crate) fn is_all_powerful(&self) -> bool {
        self.groups.iter().any(|group| group == MASTERS)
    }
}
