//! Tests settings: the order of their sources, and the refusal of untrusted ones.

use super::files::parse;
use super::*;

const USER: &str = "/home/ada/.config/warren/config.toml";
const PROJECT: &str = "/src/warren.toml";

fn merge(
    user: &str,
    project: &str,
    environment: &[(&str, &str)],
    flags: &[(&'static str, &str)],
) -> Result<Config, ConfigError> {
    let (user_path, project_path) = (Path::new(USER), Path::new(PROJECT));
    let user = parse(user_path, user, false)?;
    let project = parse(project_path, project, true)?;
    let flags = flags.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
    let look_up = |name: &str| {
        environment.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
    };
    Config::merge(Some((user_path, user)), Some((project_path, project)), look_up, &flags)
}

fn fault(user: &str, project: &str, environment: &[(&str, &str)]) -> String {
    merge(user, project, environment, &[]).expect_err("refused").to_string()
}

#[test]
fn nearer_layer_wins_and_is_named() {
    let user = "ttl = '2h'\nidle-timeout = '5m'\npool = 'p'\nforget-missing = true\nexec-timeout = 0";
    let project = "ttl = '3h'\nidle-timeout = '6m'\nexclude = ['/a', '*.log']";
    let config =
        merge(user, project, &[("WARREN_IDLE_TIMEOUT", "7m"), ("WARREN_POOL", "")], &[("ttl", "4h")]);
    let config = config.expect("valid");
    assert_eq!(config.get("ttl"), ("4h", &Origin::Flag("ttl".to_owned())));
    assert_eq!(config.get("idle-timeout"), ("7m", &Origin::Environment("WARREN_IDLE_TIMEOUT".to_owned())));
    assert_eq!(config.get("exclude"), ("/a\n*.log", &Origin::Project(PROJECT.into())));
    assert_eq!(config.get("pool"), ("p", &Origin::User(USER.into())));
    assert_eq!(config.get("sandbox-ready-timeout"), ("180s", &Origin::Default));
    assert_eq!(config.duration("exec-timeout"), Duration::ZERO);
    assert_eq!(config.list("exclude"), ["/a", "*.log"]);
    assert!(config.is("forget-missing") && config.is("delete-on-release"));
    assert!(config.is_said("pool") && !config.is_said("container"));
}

#[test]
fn local_home_has_no_use_for_what_is_said_about_a_cluster() {
    let user = "context = 'c'\npool = 'p'\nttl = '2h'";
    let mut config = merge(user, "", &[("WARREN_CONTAINER", "x")], &[("namespace", "n")]).expect("valid");
    config.leave_the_cluster();
    assert_eq!((config.text("context"), config.text("pool"), config.text("container")), (None, None, None));
    assert_eq!((config.get("namespace").0, config.get("ttl").0), ("n", "2h"));
}

#[test]
fn presets_stand_for_hosts_and_come_from_the_user_alone() {
    let presets = "[presets]\npython = ['a.example', '*.b.example']";
    let config = merge(presets, "", &[], &[]).expect("valid");
    let wanted = ["c.example", "python", "node"].map(str::to_owned);
    assert_eq!(config.hosts(&wanted), ["c.example", "a.example", "*.b.example", "node"]);
    assert!(fault("", presets, &[]).contains("may not set `presets`"));
}

#[test]
fn file_in_a_repository_chooses_no_cluster_workload_or_program() {
    for key in ["context", "kubeconfig", "namespace", "pool", "container", "workdir", "forget-missing"] {
        let text = fault("", &format!("{key} = 'x'"), &[]);
        assert!(text.starts_with("`/src/warren.toml` may not set `"), "{text}");
        assert!(text.contains(key), "{text}");
    }
    // No setting names a program.
    assert!(fault("", "kubectl = './evil'", &[]).contains("there is no setting `kubectl`"));
    merge("", "ttl = '1h'\nexec-timeout = '5m'", &[], &[]).expect("these are harmless");
}

#[test]
fn values_that_cannot_be_used_are_refused_with_their_origin() {
    for (user, expected) in [
        ("workdir = '/usr'", "`/usr` cannot be the work directory"),
        ("workdir = 'relative'", "name an absolute path"),
        ("namespace = 'a/b'", "no blanks and no `/`"),
        ("pool = 'a b'", "no blanks and no `/`"),
        ("container = \"a\\tb\"", "no blanks and no `/`"),
        ("kubeconfig = 'relative/config'", "name it by an absolute path"),
        ("ttl = 'soon'", "`ttl` is `soon`"),
        ("ttl = 99999999999", "longer than ten years"),
        ("delete-on-release = 'maybe'", "`true` or `false`"),
        ("pool = { name = 'x' }", "is a string"),
        ("pool = ", "is no TOML"),
        ("pol = 'x'", "there is no setting `pol`"),
        ("[presets]\npython = 'a.example'", "has a list of hosts for each name"),
        ("[presets]\n'a.example' = ['b.example']", "a preset has a name"),
    ] {
        let text = fault(user, "", &[]);
        assert!(text.contains(expected) && text.contains("config.toml"), "{user}: {text}");
    }
    let text = fault("", "", &[("WARREN_WORKDIR", "/home")]);
    assert!(text.starts_with("$WARREN_WORKDIR: `workdir` is `/home`"), "{text}");
}
