//! The user of a request.

/// The group of all authenticated users.
pub(crate) const EVERYONE: &str = "system:authenticated";
/// The group whose members may do everything, whatever roles say.
const MASTERS: &str = "system:masters";

/// The user who makes a request. It travels as an extension of the request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The user's name, such as `system:admin`.
    pub user: String,
    /// The groups the user is in.
    pub groups: Vec<String>,
    /// The UID. It distinguishes a service account from an earlier one of the same name.
    pub uid: Option<String>,
    /// Further attributes, by key.
    pub extra: Vec<(String, Vec<String>)>,
}

impl Identity {
    /// Creates a user in the given groups and in `system:authenticated`.
    pub fn new(user: impl Into<String>, groups: impl IntoIterator<Item = String>) -> Identity {
        let mut groups: Vec<String> = groups.into_iter().collect();
        if !groups.iter().any(|group| group == EVERYONE) {
            groups.push(EVERYONE.to_owned());
        }
        Identity { user: user.into(), groups, uid: None, extra: Vec::new() }
    }

    /// Returns the administrator: root on this machine, or the holder of the admin certificate.
    pub fn admin() -> Identity {
        Identity::new("system:admin", [MASTERS.to_owned()])
    }

    /// Returns true for members of `system:masters`, who bypass all roles.
    pub(crate) fn is_all_powerful(&self) -> bool {
        self.groups.iter().any(|group| group == MASTERS)
    }
}
