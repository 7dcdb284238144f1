//! E2B's envd API, on port 49983: processes, files and directories for E2B's published SDKs.

/// The port that the API is served on.
pub const PORT: u16 = 49983;

/// The path of the methods for processes: `Start`, `Connect`, `List`, `SendInput` and others.
pub const PROCESS_SERVICE: &str = "/process.Process/";

/// The path of the methods for directories: `ListDir`, `Stat`, `WatchDir` and others.
pub const FILESYSTEM_SERVICE: &str = "/filesystem.Filesystem/";

/// The version that clients are told. They switch features on by it: this one has standard input, a default user,
/// recursive watches, uploads as plain bodies, metadata of files, and entries in watch events.
pub const VERSION: &str = "0.6.4";

/// The user that commands run as, unless a request names another.
pub const DEFAULT_USER: &str = "user";

/// The home directory of [`DEFAULT_USER`].
pub const DEFAULT_HOME: &str = "/home/user";
