//! A pod's way to its host: a pair of devices, one end in the pod's network namespace, the other in the host's.
//!
//! The pod shares no segment with anybody. What it sends reaches the host, which routes or drops it; the host has a route
//! of its own for each pod. A bridge with all pods as its ports would be the other way to do it, but a kernel bridge takes
//! no more than 1,023 ports, and would carry packets between pods that the host's rules never see.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::BorrowedFd;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use warren_sys::network::link::{self, HardwareAddress, Route, Setting, Veth};
use warren_sys::network::netlink::Netlink;

use crate::protocol::PodNetwork;

/// The device's name inside.
const INSIDE: &str = "eth0";

/// The host's hardware address, on every pair: no two of them meet. Locally administered.
const HOST_HARDWARE: HardwareAddress = [0x02, b'w', 0, 0, 0, 1];

/// Both sides are told each other's hardware address, so nobody has to ask, and nobody can answer in another's place.
fn pod_hardware(address: Ipv4Addr) -> HardwareAddress {
    let [a, b, c, d] = address.octets();
    [0x02, b'p', a, b, c, d]
}

/// From the host's side: makes the pair, with its other end in `namespace`, and the route to the pod. Both go with the
/// namespace, however it ends.
pub(super) fn connect(network: &PodNetwork, namespace: BorrowedFd<'_>) -> io::Result<()> {
    let mut netlink = Netlink::route()?;
    let veth = Veth {
        name: &network.device,
        hardware: HOST_HARDWARE,
        peer_name: INSIDE,
        peer_hardware: pod_hardware(network.address),
        namespace,
    };
    match netlink.add_veth(&veth) {
        // Left from a namespace of this pod that has ended: the kernel takes its time to remove it.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let _ = netlink.delete_link(&network.device);
            netlink.add_veth(&veth)?;
        }
        other => other?,
    }
    let device = link::index(&network.device)?;
    without_address_of_version_6(&mut netlink, device)?;
    let (destination, source) = (network.address, Some(network.gateway));
    netlink.apply(&[
        // To other pods and out, if the host's rules let it. To be said before it is up, as above: the other end is not yet, and the
        // kernel would look through all routes for those that lead nowhere.
        Setting::Forward { device },
        Setting::Up { device },
        Setting::Route(Route { destination, prefix: 32, device, gateway: None, source }),
        Setting::Neighbour { device, address: network.address, hardware: pod_hardware(network.address) },
    ])
}

/// From inside, once the pair is there: address and routes. Needs the namespace owner's rights, which the program that
/// runs later does not have.
pub(super) fn configure(network: &PodNetwork) -> io::Result<()> {
    let mut netlink = Netlink::route()?;
    let device = link::index(INSIDE)?;
    let mut settings = vec![
        Setting::Up { device },
        Setting::Address { device, address: network.address, prefix: 32 },
        Setting::Route(Route {
            destination: network.gateway,
            prefix: 32,
            device,
            gateway: None,
            source: None,
        }),
        Setting::Neighbour { device, address: network.gateway, hardware: HOST_HARDWARE },
    ];
    settings.extend(network.routes.iter().map(|(destination, prefix)| {
        let gateway = Some(network.gateway);
        Setting::Route(Route { destination: *destination, prefix: *prefix, device, gateway, source: None })
    }));
    netlink.apply(&settings)
}

/// The host's end of a pair has no address of IP version 6. To be said before it is up: the kernel looks through the addresses and
/// routes of all devices for each that has one.
fn without_address_of_version_6(netlink: &mut Netlink, device: u32) -> io::Result<()> {
    match netlink.apply(&[Setting::NoVersion6Address { device }]) {
        // A kernel without it.
        Err(error) if error.raw_os_error() == Some(libc::EAFNOSUPPORT) => Ok(()),
        other => other,
    }
}

/// The pod's device will have no IP version 6 at all, also for a program that may set up devices: no rule of ours is about it. To be
/// said before the device comes: it takes over what is said of all, which the kernel writes down at once, while whoever tells a device
/// spins as long as another changes the network. Loopback keeps version 6.
///
/// `proc` is the container's own procfs, if it has one: in the host's, the kernel looks through the settings of all pods for those
/// of one.
pub(super) fn without_version_6(proc: BorrowedFd<'_>) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    match rustix::fs::openat(proc, "sys/net/ipv6/conf/default/disable_ipv6", flags, Mode::empty()) {
        Ok(file) => Ok(rustix::io::write(file, b"1").map(drop)?),
        // A kernel without it.
        Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
