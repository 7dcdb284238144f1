//! Tests `warren controller` on the command line: its flags, and its errors before any connection
//! is made.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so by a panic")]

use std::net::TcpListener;
use std::process::{Command, Output};

fn controller(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_warren"))
        .arg("controller")
        .args(arguments)
        .env_remove("WARREN_LOG")
        .env("HOME", "/nonexistent")
        .output()
        .unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Every flag of agent-sandbox's controller, in Go's spellings. The kubeconfig does not exist, so
/// the program ends there.
#[test]
fn the_arguments_of_an_existing_deployment_are_taken() {
    let output = controller(&[
        "-kubeconfig=/nonexistent/kubeconfig",
        "--leader-elect=true",
        "-leader-election-namespace",
        "agent-sandbox-system",
        "--extensions",
        "-cluster-domain=cluster.local",
        "--metrics-bind-address=127.0.0.1:0",
        "-metrics-secure-serving",
        "--metrics-cert-dir=",
        "--tls-min-version=VersionTLS12",
        "-tls-cipher-suites",
        "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
        "--health-probe-bind-address",
        "127.0.0.1:0",
        "--enable-tracing=false",
        "--enable-pprof=false",
        "-enable-pprof-debug=F",
        "--pprof-block-profile-rate=-1",
        "--pprof-mutex-profile-fraction=10",
        "--kube-api-qps=-1",
        "-kube-api-burst",
        "20",
        "--api-connections=4",
        "--separate-watch-connection",
        "--sandbox-concurrent-workers=150",
        "--sandbox-claim-concurrent-workers=100",
        "--sandbox-warm-pool-concurrent-workers=2",
        "--sandbox-template-concurrent-workers=1",
        "--sandbox-warm-pool-max-batch-size=100",
        "--sandbox-warm-pool-replenish-delay=1m30s",
        "--sandbox-warm-pool-max-refill-rate=2.5",
        "--sandbox-warm-pool-readiness-grace-period=90s",
        "--sandbox-warm-pool-unschedulable-recheck-interval=1h",
        "--enable-warm-pool-eviction=false",
        "--cache-label-selectors=true",
        "--disable-claim-events",
        "--disable-claim-observability-annotations=1",
        "--sandbox-write-behind-window=500ms",
        "--webhook-port=9443",
        "--webhook-cert-dir=/tmp/certs",
        "--webhook-cert-name=tls.crt",
        "--webhook-key-name=tls.key",
        "--webhook-service-name=agent-sandbox-webhook-service",
        "--webhook-namespace=agent-sandbox-system",
        "--manage-webhook-certs=true",
        "--enable-webhook=false",
        "--zap-log-level=info",
        "--zap-encoder=console",
        "--zap-devel=false",
        "--zap-stacktrace-level=panic",
        "--zap-time-encoding=rfc3339",
    ]);
    let said = said(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("error: use the kubeconfig `/nonexistent/kubeconfig`"), "{said}");
    // A flag without effect causes a warning, unless it asks for the present behaviour.
    for flag in
        ["--webhook-port", "--manage-webhook-certs", "--api-connections", "--sandbox-write-behind-window"]
    {
        assert!(said.contains(&format!("flag without effect flag=\"{flag}\"")), "{flag}: {said}");
    }
    for flag in ["--enable-webhook", "--enable-pprof", "--zap-devel", "--disable-claim-events"] {
        assert!(!said.contains(&format!("flag=\"{flag}\"")), "{flag}: {said}");
    }
}

#[test]
fn values_that_make_no_sense_end_it_before_anything_is_contacted() {
    for (argument, said_about_it) in [
        ("--sandbox-concurrent-workers=0", "`--sandbox-concurrent-workers` must be greater than 0"),
        (
            "--sandbox-claim-concurrent-workers=-3",
            "`--sandbox-claim-concurrent-workers` must be greater than 0",
        ),
        (
            "--sandbox-warm-pool-max-batch-size=0",
            "`--sandbox-warm-pool-max-batch-size` must be greater than 0",
        ),
        ("--sandbox-warm-pool-max-refill-rate=-1", "must be a number from 0 on"),
        ("--sandbox-warm-pool-max-refill-rate=NaN", "must be a number from 0 on"),
        ("--sandbox-warm-pool-readiness-grace-period=0", "must be greater than 0"),
        ("--sandbox-warm-pool-readiness-grace-period=-1s", "must be greater than 0"),
        ("--sandbox-warm-pool-unschedulable-recheck-interval=-1s", "must be greater than 0"),
        ("--sandbox-warm-pool-replenish-delay=-1s", "must not be negative"),
        ("--claim-deadline=-1s", "must not be negative"),
        ("--kube-api-burst=0", "`--kube-api-burst` must be greater than 0"),
        ("--sandbox-concurrent-workers=9000000000000000000", "must be 100000 at most"),
        ("--sandbox-template-concurrent-workers=9000000000000000000", "must be 100000 at most"),
        ("--metrics-bind-address=x", "use `--metrics-bind-address`: `x` is not an address"),
        ("--tls-min-version=TLS1.2", "use `--tls-min-version`: `TLS1.2` is none of VersionTLS10, "),
        (
            "--tls-cipher-suites=TLS_AES_128_GCM_SHA256,RC4",
            "use `--tls-cipher-suites`: `RC4` is none of TLS_AES_128_GCM_SHA256, ",
        ),
        // Also for flags without effect.
        ("--api-connections=0", "`--api-connections` must be greater than 0"),
        ("--sandbox-write-behind-window=-1s", "must not be negative"),
        ("--webhook-cert-name= ", "`--webhook-cert-name` must not be blank"),
        ("--webhook-key-name=", "`--webhook-key-name` must not be blank"),
    ] {
        let output = controller(&["--kubeconfig=/nonexistent", argument]);
        let said = said(&output);
        assert_eq!(output.status.code(), Some(1), "{argument}: {said}");
        assert!(said.contains(said_about_it), "{argument}: {said}");
    }
    for argument in [
        "--no-such-flag",
        "--leader-elect=maybe",
        "--claim-deadline=5",
        "--api-connections=x",
        "--separate-watch-connection=maybe",
        "--sandbox-write-behind-window=5",
        "--pprof-block-profile-rate=1.5",
        "--webhook-port=https",
        "--zap-encoder=xml",
    ] {
        let output = controller(&[argument]);
        // The exit code of Go's flag package.
        assert_eq!(output.status.code(), Some(2), "{argument}: {}", said(&output));
    }
}

#[test]
fn a_certificate_that_is_missing_ends_it_and_is_named() {
    let addresses = ["--metrics-bind-address=127.0.0.1:0", "--health-probe-bind-address=0"];
    let certificates = ["--metrics-secure-serving", "--metrics-cert-dir=/nonexistent/certificates"];
    let output = controller(&[&["--kubeconfig=/nonexistent"], &addresses[..], &certificates[..]].concat());
    let said_of_it = said(&output);
    assert_eq!(output.status.code(), Some(1), "{said_of_it}");
    let file = "error: serve metrics over TLS: read `/nonexistent/certificates/tls.crt`: No such file";
    assert!(said_of_it.contains(file), "{said_of_it}");

    let output = controller(&[&["--kubeconfig=/nonexistent"], &addresses[..], &certificates[1..]].concat());
    assert!(said(&output).contains("--metrics-cert-dir"), "{}", said(&output));
    assert!(said(&output).contains("`--metrics-secure-serving` is not given"), "{}", said(&output));
}

#[test]
fn a_port_in_use_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output = controller(&[
        "--kubeconfig=/nonexistent",
        "--health-probe-bind-address",
        &address,
        "--metrics-bind-address=0",
    ]);
    let said = said(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains(&format!("error: serve health probes on `{address}`: Address already in use")),
        "{said}"
    );
    assert!(said.contains("hint: "), "{said}");
}

#[test]
fn the_version_needs_no_cluster() {
    let output = controller(&["-version"]);
    assert!(output.status.success());
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.starts_with("warren "), "{said}");
    assert!(said.contains("(commit ") && said.contains(", built "), "{said}");
}

#[test]
fn the_log_is_json_unless_somebody_reads_along() {
    let log = |more: &[&str]| {
        let flags =
            ["--kubeconfig=/nonexistent", "--metrics-bind-address=0", "--health-probe-bind-address=0"];
        let output =
            controller(&[&flags[..], &["--zap-log-level=INFO", "--api-connections=2"], more].concat());
        said(&output).lines().next().unwrap().to_owned()
    };
    let line: serde_json::Value = serde_json::from_str(&log(&[])).unwrap();
    assert_eq!((&line["level"], &line["fields"]["flag"]), (&"WARN".into(), &"--api-connections".into()));
    assert!(log(&["--zap-encoder=Console"]).contains("flag=\"--api-connections\""));
}
