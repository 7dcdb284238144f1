//! Generates texts with a grammar: selectors, queries, paths, YAML.

use fastrand::Rng;

use super::mutate::{pick, word};

/// Percent-encodes a value; sometimes wrongly.
pub(super) fn encode(random: &mut Rng, text: &str) -> String {
    let sloppy = random.u8(..20) == 0;
    let mut out = String::new();
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' => out.push(char::from(byte)),
            b'=' | b',' | b'%' | b'/' if sloppy => out.push(char::from(byte)),
            byte => out.push_str(&format!("%{byte:02x}")),
        }
    }
    out
}

/// Returns a text similar to a label selector.
pub(super) fn label_selector(random: &mut Rng) -> String {
    const SIGNS: &[&str] = &[
        "=",
        "==",
        "!=",
        "!",
        ",",
        " ",
        "(",
        ")",
        " in ",
        " notin ",
        ">",
        "<",
        "app",
        "web",
        "tier",
        "a",
        "example.com/x",
        "5",
        "",
    ];
    (0..random.usize(..9))
        .map(|_| if random.u8(..9) == 0 { word(random) } else { (*pick(random, SIGNS)).to_owned() })
        .collect()
}

/// Returns a text similar to a field selector.
pub(super) fn field_selector(random: &mut Rng) -> String {
    const SIGNS: &[&str] = &[
        "=",
        "==",
        "!=",
        ",",
        "\\",
        "\\,",
        "metadata.name",
        "metadata.namespace",
        "status.phase",
        "spec.nodeName",
        "involvedObject.name",
        "pod",
        "default",
        "type",
        "",
    ];
    (0..random.usize(..7))
        .map(|_| if random.u8(..9) == 0 { word(random) } else { (*pick(random, SIGNS)).to_owned() })
        .collect()
}

/// Returns the query of a list or watch.
pub(super) fn list_query(random: &mut Rng) -> String {
    const NAMES: &[&str] = &[
        "watch",
        "resourceVersion",
        "resourceVersionMatch",
        "timeoutSeconds",
        "limit",
        "continue",
        "allowWatchBookmarks",
        "sendInitialEvents",
        "includeObject",
        "labelSelector",
        "fieldSelector",
        "pretty",
        "dryRun",
        "fieldManager",
        "force",
    ];
    const VALUES: &[&str] = &[
        "true",
        "false",
        "1",
        "0",
        "",
        "-1",
        "2",
        "5",
        "100",
        "9223372036854775807",
        "18446744073709551615",
        "NotOlderThan",
        "Exact",
        "All",
        "eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6NSwic3RhcnQiOiJhXHUwMDAwIn0",
        "None",
        "Object",
        "Metadata",
    ];
    let mut pairs = vec!["timeoutSeconds=1".to_owned()];
    for _ in 0..random.usize(1..6) {
        let name = *pick(random, NAMES);
        let value = match (name, random.u8(..6)) {
            ("labelSelector", _) => label_selector(random),
            ("fieldSelector", _) => field_selector(random),
            (_, 0) => word(random),
            _ => (*pick(random, VALUES)).to_owned(),
        };
        let value = encode(random, &value);
        pairs.push(format!("{name}={value}"));
    }
    random.shuffle(&mut pairs);
    pairs.join("&")
}

/// Returns a path made of pieces of paths.
pub(super) fn path(random: &mut Rng) -> String {
    const PIECES: &[&str] = &[
        "api",
        "apis",
        "v1",
        "namespaces",
        "default",
        "pods",
        "pod",
        "status",
        "scale",
        "log",
        "exec",
        "attach",
        "portforward",
        "eviction",
        "binding",
        "token",
        "finalize",
        "configmaps",
        "config",
        "nodes",
        "apiextensions.k8s.io",
        "customresourcedefinitions",
        "openapi",
        "v2",
        "v3",
        "version",
        "healthz",
        "readyz",
        "metrics",
        "fuzz.example",
        "things",
        "thing",
        "coordination.k8s.io",
        "leases",
        "watch",
        "proxy",
        "authorization.k8s.io",
        "selfsubjectaccessreviews",
        "",
        ".",
        "..",
        "%2f",
        "%zz",
        "%",
        "a%00b",
    ];
    let mut path = String::new();
    for _ in 0..random.usize(..9) {
        path.push('/');
        if random.u8(..8) == 0 {
            let word = word(random);
            path.push_str(&encode(random, &word));
        } else {
            path.push_str(pick::<&str>(random, PIECES));
        }
    }
    if path.is_empty() { "/".to_owned() } else { path }
}

/// Returns YAML with all features of YAML.
pub(super) fn yaml(random: &mut Rng) -> String {
    const DOCUMENTS: &[&str] = &[
        "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: yaml\ndata:\n  a: |\n    text\n    more\n  b: 'quoted'\n  c: \"esc\\u00e4\"\n",
        "apiVersion: v1\nkind: ConfigMap\nmetadata: &m {name: yaml, labels: {a: \"1\"}}\ndata: {x: \"1\", y: '2'}\n",
        "a: &a [x, x, x]\nb: &b [*a, *a, *a, *a, *a, *a, *a, *a]\nc: &c [*b, *b, *b, *b, *b, *b, *b, *b]\nd: &d [*c, *c, *c, *c, *c, *c, *c, *c]\ne: &e [*d, *d, *d, *d, *d, *d, *d, *d]\nf: &f [*e, *e, *e, *e, *e, *e, *e, *e]\ng: [*f, *f, *f, *f, *f, *f, *f, *f]\n",
        "base: &base\n  x: 1\nmetadata:\n  <<: *base\n  name: merged\n",
        "? complex\n: value\n? [a, b]\n: c\n",
        "--- !!map\nkind: !!str ConfigMap\napiVersion: v1\nmetadata: {name: tagged}\n...\n---\nsecond: document\n",
        "kind: ConfigMap\nkind: ConfigMap\nmetadata:\n  name: twice\n",
        "data:\n  n: 0x1f\n  o: 0o17\n  y: yes\n  f: .inf\n  t: 2026-01-01\n  ~: null\nkind: ConfigMap\n",
    ];
    let mut text = (*pick(random, DOCUMENTS)).to_owned();
    if random.u8(..6) == 0 {
        let levels = random.usize(1..3000);
        text.push_str(&format!("deep: {}{}\n", "[".repeat(levels), "]".repeat(levels)));
    }
    text
}
