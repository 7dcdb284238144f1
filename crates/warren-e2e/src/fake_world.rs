//! A simulated machine and internet, made of network namespaces, for tests of the pod network.
//!
//! The calling thread becomes the machine: it and every process that it starts from then on have
//! the machine's network, a `hosts` file of the test's own, and no resolver. Nothing leaves the two
//! namespaces, and both are gone when the thread and its processes are.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::path::Path;
use std::time::Duration;

use warren_sys::network::link::{self, Route, Setting, Veth};
use warren_sys::network::netlink::Netlink;
use warren_sys::network::nftables;
use warren_sys::process::Namespaces;
use warren_sys::{mount, namespace};

/// The machine's address in this network.
pub const MACHINE: Ipv4Addr = Ipv4Addr::new(11, 0, 0, 1);
/// A host on the internet.
pub const INTERNET: Ipv4Addr = Ipv4Addr::new(11, 0, 0, 2);
/// A host in a private network.
pub const PRIVATE: Ipv4Addr = Ipv4Addr::new(192, 168, 77, 2);
/// The metadata address of clouds.
pub const METADATA: Ipv4Addr = Ipv4Addr::new(169, 254, 169, 254);
/// The port on which every address answers with itself.
pub const PORT: u16 = 80;

const MACHINE_HARDWARE: [u8; 6] = [2, 0, 0, 0, 1, 1];
const WORLD_HARDWARE: [u8; 6] = [2, 0, 0, 0, 1, 2];

/// The names of hosts in this network.
const HOSTS: &str = "127.0.0.1 localhost\n\
                     11.0.0.2 allowed.test denied.test\n\
                     192.168.77.2 private.test\n\
                     169.254.169.254 metadata.test\n\
                     127.0.0.1 loopback.test\n";

/// Turns the calling thread into the machine. Returns false, with a printed reason, where that is
/// not possible.
pub fn enter(scratch: &Path) -> bool {
    match try_enter(scratch) {
        Ok(()) => true,
        Err(error) => {
            eprintln!(
                "skipped: no network namespaces with devices and packet rules can be made here: {error}"
            );
            false
        }
    }
}

fn try_enter(scratch: &Path) -> io::Result<()> {
    namespace::unshare(Namespaces::NETWORK.with(Namespaces::MOUNT))?;
    mount::keep_mounts_private()?;
    for (name, text) in [("hosts", HOSTS), ("resolv.conf", "")] {
        let path = scratch.join(name);
        std::fs::write(&path, text)?;
        let copy = mount::copy_mount(&path, false)?;
        mount::attach(copy.as_fd(), &Path::new("/etc").join(name).canonicalize()?)?;
    }
    namespace::loopback_up()?;
    let world = make_world()?;
    let mut netlink = Netlink::route()?;
    // Without these a home has no pod network.
    netlink.add_bridge("probe")?;
    netlink.delete_link("probe")?;
    nftables::remove("probe")?;
    netlink.add_veth(&Veth {
        name: "uplink",
        hardware: MACHINE_HARDWARE,
        peer_name: "world",
        peer_hardware: WORLD_HARDWARE,
        namespace: world.namespace.as_fd(),
    })?;
    let device = link::index("uplink")?;
    let everywhere = Route {
        destination: Ipv4Addr::UNSPECIFIED,
        prefix: 0,
        device,
        gateway: Some(INTERNET),
        source: None,
    };
    // The link-local address too: a machine in a cloud reaches the metadata service.
    let metadata = Route { destination: METADATA, prefix: 32, device, gateway: Some(INTERNET), source: None };
    netlink.apply(&[
        Setting::Up { device },
        Setting::Address { device, address: MACHINE, prefix: 24 },
        Setting::Route(everywhere),
        Setting::Route(metadata),
    ])?;
    world.connected.send(()).map_err(io::Error::other)?;
    world.ready.recv().map_err(io::Error::other)?
}

struct World {
    namespace: File,
    connected: std::sync::mpsc::Sender<()>,
    ready: std::sync::mpsc::Receiver<io::Result<()>>,
}

fn make_world() -> io::Result<World> {
    let (send_namespace, namespace) = std::sync::mpsc::channel();
    let (connected, wait) = std::sync::mpsc::channel();
    let (send_ready, ready) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let made =
            namespace::unshare(Namespaces::NETWORK).and_then(|()| File::open("/proc/thread-self/ns/net"));
        let failed = made.is_err();
        if send_namespace.send(made).is_err() || failed || wait.recv().is_err() {
            return;
        }
        match prepare_world() {
            Ok(listener) => {
                let _ = send_ready.send(Ok(()));
                answer(&listener);
            }
            Err(error) => {
                let _ = send_ready.send(Err(error));
            }
        }
    });
    Ok(World { namespace: namespace.recv().map_err(io::Error::other)??, connected, ready })
}

fn prepare_world() -> io::Result<TcpListener> {
    namespace::loopback_up()?;
    let device = link::index("world")?;
    let address = |address, prefix| Setting::Address { device, address, prefix };
    Netlink::route()?.apply(&[
        Setting::Up { device },
        address(INTERNET, 24),
        address(PRIVATE, 24),
        address(METADATA, 32),
    ])?;
    TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT))
}

/// Answers as an HTTP server with a single response.
fn answer(listener: &TcpListener) {
    while let Ok((mut stream, _)) = listener.accept() {
        std::thread::spawn(move || {
            let mut request = [0; 1024];
            let _ = stream.set_read_timeout(Some(Duration::from_secs(60)));
            let mut known = 0;
            // Read to the end: closing with unread bytes would discard the answer.
            while !request[..known].ends_with(b"\r\n\r\n") {
                match stream.read(&mut request[known..]) {
                    Ok(length) if length > 0 => known += length,
                    _ => return,
                }
            }
            let from = stream.local_addr().map(|address| address.ip().to_string()).unwrap_or_default();
            let body = format!("reached {from}\n");
            let head =
                format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
            let _ = stream.write_all((head + &body).as_bytes());
        });
    }
}

/// Starts a service on the machine itself, which pods must not reach.
pub fn serve_on(address: SocketAddr) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind(address)?;
    let address = listener.local_addr()?;
    std::thread::spawn(move || answer(&listener));
    Ok(address)
}

/// Returns the machine's own answer from an address.
pub fn get(address: impl Into<SocketAddr>) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address.into(), Duration::from_secs(60))?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

/// Returns the machine's devices whose names begin with one of Warren's marks.
pub fn devices() -> Vec<String> {
    let links = Netlink::route().and_then(|mut netlink| netlink.links()).expect("list the devices");
    links.into_iter().map(|(_, name)| name).filter(|name| name.starts_with("wrn")).collect()
}
