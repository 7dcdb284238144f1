//! Tests of devices, routes and packet rules, in a network namespace of their own. They need root
//! and support of the kernel. Without it they print a message and pass.

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd as _;
use std::time::Duration;

use warren_sys::namespace;
use warren_sys::network::link::{self, Route, Setting, Veth};
use warren_sys::network::netlink::Netlink;
use warren_sys::network::nftables::{self, Chain, Hook, Match, Rule, Set, Table, Verdict};
use warren_sys::process::Namespaces;

const HERE: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 1);
const THERE: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 2);
const HARDWARE_HERE: [u8; 6] = [2, 0, 0, 0, 0, 1];
const HARDWARE_THERE: [u8; 6] = [2, 0, 0, 0, 0, 2];

/// Runs `work` on a thread in a new network namespace, which ends with the thread.
fn in_new_namespace(work: impl FnOnce() + Send + 'static) {
    let thread = std::thread::spawn(|| {
        if let Err(error) = namespace::unshare(Namespaces::NETWORK) {
            eprintln!("skipped: no network namespace can be made here: {error}");
            return;
        }
        namespace::loopback_up().expect("root may, in a namespace of its own");
        work();
    });
    thread.join().expect("the test in its namespace");
}

/// Returns true if the kernel lacks the feature under test.
fn missing(what: &str, outcome: io::Result<()>) -> bool {
    match outcome {
        Ok(()) => false,
        Err(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EPROTONOSUPPORT)) => {
            eprintln!("skipped: the kernel has no {what}: {error}");
            true
        }
        Err(error) => panic!("{what}: {error}"),
    }
}

/// Makes a pair of devices from here to a second namespace, in which `there` runs.
fn with_neighbour(there: impl FnOnce() + Send + 'static, here: impl FnOnce()) {
    let (send, receive) = std::sync::mpsc::channel();
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let neighbour = std::thread::spawn(move || {
        namespace::unshare(Namespaces::NETWORK).expect("root may, in a namespace of its own");
        // `self` is the process, whose first thread is in another namespace.
        send.send(
            std::fs::File::open("/proc/thread-self/ns/net").expect("root may, in a namespace of its own"),
        )
        .expect("root may, in a namespace of its own");
        wait.recv().expect("root may, in a namespace of its own");
        let device = link::index("eth0").expect("root may, in a namespace of its own");
        let mut netlink = Netlink::route().expect("root may, in a namespace of its own");
        match netlink.apply(&[Setting::NoVersion6Address { device }]) {
            Err(error) if error.raw_os_error() == Some(libc::EAFNOSUPPORT) => {}
            outcome => outcome.expect("root may, in a namespace of its own"),
        }
        netlink
            .apply(&[
                Setting::Up { device },
                Setting::Address { device, address: THERE, prefix: 32 },
                Setting::Route(Route { destination: HERE, prefix: 32, device, gateway: None, source: None }),
                Setting::Neighbour { device, address: HERE, hardware: HARDWARE_HERE },
                Setting::Route(Route {
                    destination: Ipv4Addr::UNSPECIFIED,
                    prefix: 0,
                    device,
                    gateway: Some(HERE),
                    source: None,
                }),
            ])
            .expect("root may, in a namespace of its own");
        there();
    });
    let namespace = receive.recv().expect("root may, in a namespace of its own");
    let mut netlink = Netlink::route().expect("root may, in a namespace of its own");
    let veth = Veth {
        name: "test-veth",
        hardware: HARDWARE_HERE,
        peer_name: "eth0",
        peer_hardware: HARDWARE_THERE,
        namespace: namespace.as_fd(),
    };
    netlink.add_veth(&veth).expect("root may, in a namespace of its own");
    assert_eq!(
        netlink.add_veth(&veth).expect_err("it is there already").kind(),
        io::ErrorKind::AlreadyExists
    );
    let device = link::index("test-veth").expect("root may, in a namespace of its own");
    netlink
        .apply(&[
            Setting::Up { device },
            Setting::Address { device, address: HERE, prefix: 32 },
            Setting::Route(Route {
                destination: THERE,
                prefix: 32,
                device,
                gateway: None,
                source: Some(HERE),
            }),
            Setting::Neighbour { device, address: THERE, hardware: HARDWARE_THERE },
        ])
        .expect("root may, in a namespace of its own");
    here();
    go.send(()).expect("root may, in a namespace of its own");
    neighbour.join().expect("the neighbour");
}

/// Reads the value of this thread's own namespace.
fn forwarding(device: &str) -> String {
    std::fs::read_to_string(format!("/proc/sys/net/ipv4/conf/{device}/forwarding"))
        .expect("root may, in a namespace of its own")
}

fn echo_once(listener: TcpListener) {
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            let _ = stream.write_all(b"hello");
        }
    });
}

fn greeting(address: Ipv4Addr, port: u16) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&(address, port).into(), Duration::from_secs(60))?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

#[test]
fn a_bridge_has_an_address_and_a_route_and_goes_away() {
    in_new_namespace(|| {
        let mut netlink = Netlink::route().expect("root may, in a namespace of its own");
        if missing("bridges", netlink.add_bridge("test-bridge")) {
            return;
        }
        let device = link::index("test-bridge").expect("root may, in a namespace of its own");
        assert!(
            netlink
                .links()
                .expect("root may, in a namespace of its own")
                .contains(&(device, "test-bridge".to_owned()))
        );
        netlink.apply(&[Setting::Forward { device }]).expect("root may, in a namespace of its own");
        assert_eq!(forwarding("test-bridge").trim(), "1");
        let address = Setting::Address { device, address: HERE, prefix: 24 };
        netlink.apply(&[address]).expect("root may, in a namespace of its own");
        // Repeating it is no error.
        netlink.apply(&[address]).expect("root may, in a namespace of its own");
        let range = (Ipv4Addr::new(10, 99, 0, 0), 24, device);
        assert!(
            netlink.routes().expect("root may, in a namespace of its own").contains(&range),
            "{:?}",
            netlink.routes()
        );
        UdpSocket::bind((HERE, 0)).expect("the address is this machine's");
        netlink.delete_link("test-bridge").expect("root may, in a namespace of its own");
        assert!(
            !netlink
                .links()
                .expect("root may, in a namespace of its own")
                .iter()
                .any(|(_, name)| name == "test-bridge")
        );
        assert!(netlink.delete_link("test-bridge").is_err());
    });
}

#[test]
fn a_pair_of_devices_carries_connections_both_ways() {
    in_new_namespace(|| {
        with_neighbour(
            || assert_eq!(greeting(HERE, 7000).expect("root may, in a namespace of its own"), "hello"),
            || echo_once(TcpListener::bind((HERE, 7000)).expect("root may, in a namespace of its own")),
        );
        // The neighbour's namespace is gone. The kernel removes the pair with a delay.
    });
}

#[test]
fn a_device_has_no_address_of_version_6_if_it_is_told_so() {
    in_new_namespace(|| {
        with_neighbour(
            // The other end is up, so this one would have its address as soon as it comes up.
            || {
                let addresses = std::fs::read_to_string("/proc/thread-self/net/if_inet6").unwrap_or_default();
                assert!(!addresses.contains("eth0"), "{addresses}");
            },
            || {},
        );
    });
}

#[test]
fn rules_let_through_what_they_name_and_nothing_else() {
    in_new_namespace(|| {
        if missing("packet rules", nftables::remove("test")) {
            return;
        }
        with_neighbour(
            || {
                assert_eq!(greeting(HERE, 7001).expect("root may, in a namespace of its own"), "hello");
                assert!(greeting(HERE, 7002).is_err(), "a port that no rule names");
                assert!(greeting(HERE, 7003).is_err(), "a set that this sender is not in");
                assert_eq!(greeting(HERE, 7004).expect("root may, in a namespace of its own"), "hello");
                assert_eq!(greeting(HERE, 7005).expect("root may, in a namespace of its own"), "hello");
            },
            || {
                for port in 7001..=7005 {
                    echo_once(TcpListener::bind((HERE, port)).expect("root may, in a namespace of its own"));
                }
                let table = table();
                nftables::replace(&table).expect("root may, in a namespace of its own");
                // It is already in force; replacing it works too.
                nftables::replace(&table).expect("root may, in a namespace of its own");
            },
        );
        nftables::remove("test").expect("root may, in a namespace of its own");
        nftables::remove("test").expect("root may, in a namespace of its own");
    });
}

fn table() -> Table {
    let port = |first, last, sources: Option<&str>| {
        let mut matches = vec![
            Match::Destination(HERE),
            Match::Protocol(libc::IPPROTO_TCP as u8),
            Match::Ports(first, last),
        ];
        matches.extend(sources.map(|set| Match::SourceIn(set.to_owned())));
        Rule { matches, verdict: Verdict::Accept }
    };
    let ours = || "test-".to_owned();
    Table {
        name: "test".to_owned(),
        sets: vec![
            Set {
                name: "strangers".to_owned(),
                intervals: vec![(Ipv4Addr::new(10, 99, 0, 3), Ipv4Addr::BROADCAST)],
            },
            Set {
                name: "friends".to_owned(),
                intervals: vec![
                    (Ipv4Addr::new(1, 2, 3, 4), Ipv4Addr::new(1, 2, 3, 4)),
                    (Ipv4Addr::new(10, 99, 0, 2), Ipv4Addr::new(10, 99, 0, 7)),
                ],
            },
        ],
        chains: vec![
            Chain {
                name: "from-ours".to_owned(),
                hook: None,
                rules: vec![
                    Rule { matches: vec![Match::Established], verdict: Verdict::Accept },
                    port(7001, 7001, None),
                    port(7003, 7003, Some("strangers")),
                    port(7004, 7005, Some("friends")),
                    Rule { matches: vec![], verdict: Verdict::Reject },
                ],
            },
            Chain {
                name: "arrival".to_owned(),
                hook: Some(Hook::Arrival),
                rules: vec![
                    Rule {
                        matches: vec![Match::FromDevices(ours()), Match::NotVersion4],
                        verdict: Verdict::Drop,
                    },
                    Rule {
                        matches: vec![Match::FromDevices(ours()), Match::WrongSource],
                        verdict: Verdict::Drop,
                    },
                ],
            },
            Chain {
                name: "input".to_owned(),
                hook: Some(Hook::Input),
                rules: vec![Rule {
                    matches: vec![Match::FromDevices(ours())],
                    verdict: Verdict::Jump("from-ours".to_owned()),
                }],
            },
            Chain {
                name: "forward".to_owned(),
                hook: Some(Hook::Forward),
                rules: vec![
                    Rule {
                        matches: vec![Match::ToDevices(ours()), Match::DestinationIn("friends".to_owned())],
                        verdict: Verdict::Return,
                    },
                    Rule { matches: vec![Match::FromDevices(ours())], verdict: Verdict::Drop },
                ],
            },
            Chain {
                name: "leave".to_owned(),
                hook: Some(Hook::SourceNat),
                rules: vec![Rule {
                    matches: vec![
                        Match::Version4,
                        Match::NotToDevices(ours()),
                        Match::SourceIn("friends".to_owned()),
                    ],
                    verdict: Verdict::Masquerade,
                }],
            },
        ],
    }
}
