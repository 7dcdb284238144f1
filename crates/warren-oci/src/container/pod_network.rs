//! A pod's connection to its host: a pair of devices, one in the pod's network namespace and one in
//! the host's.
//!
//! Pods share no network segment. Packets of a pod reach the host, which routes or drops them. The
//! host has a route for each pod. The alternative, a bridge with all pods as ports, is not used: a
//! kernel bridge has at most 1,023 ports, and it would carry packets between pods past the host's
//! rules.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::BorrowedFd;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use warren_sys::network::link::{self, HardwareAddress, Route, Setting, Veth};
use warren_sys::network::netlink::Netlink;

use crate::protocol::PodNetwork;

/// The name of the device inside the pod.
const INSIDE: &str = "eth0";

/// The hardware address of the host's end, the same for every pair because no two share a segment.
/// It is locally administered.
const HOST_HARDWARE: HardwareAddress = [0x02, b'w', 0, 0, 0, 1];

/// Returns the hardware address of the pod's end. Both ends know each other's address in advance,
/// so there is no address resolution that a pod could spoof.
fn pod_hardware(address: Ipv4Addr) -> HardwareAddress {
    let [a, b, c, d] = address.octets();
    [0x02, b'p', a, b, c, d]
}

/// Makes the pair from the host's side, with its other end in `namespace`, and the route to the
/// pod. Both end with the namespace.
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
        // A device of an earlier namespace of this pod: the kernel removes it with a delay.
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
        // Allow forwarding to other pods and outside, subject to the host's rules. This comes
        // before the device is up. Otherwise the kernel would search all routes for dead ones,
        // because the other end is not up yet.
        Setting::Forward { device },
        Setting::Up { device },
        Setting::Route(Route { destination, prefix: 32, device, gateway: None, source }),
        Setting::Neighbour { device, address: network.address, hardware: pod_hardware(network.address) },
    ])
}

/// Sets address and routes from inside, once the pair exists. This needs rights over the namespace,
/// which the later program does not have.
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

/// Disables IPv6 on the host's end of a pair. This comes before the device is up, because the
/// kernel visits the addresses and routes of all devices for each new address.
fn without_address_of_version_6(netlink: &mut Netlink, device: u32) -> io::Result<()> {
    match netlink.apply(&[Setting::NoVersion6Address { device }]) {
        // The kernel has no IPv6.
        Err(error) if error.raw_os_error() == Some(libc::EAFNOSUPPORT) => Ok(()),
        other => other,
    }
}

/// Disables IPv6 on the pod's future device, even for a program that may set up devices: no packet
/// rule of ours covers IPv6. Loopback keeps it.
///
/// This is set before the device exists, as a default that the device inherits. Such a default is
/// written at once, whereas a change of a device spins while another process changes the network.
/// `proc` is the container's own procfs, if it has one: in the host's, the kernel would search the
/// settings of all pods.
pub(super) fn without_version_6(proc: BorrowedFd<'_>) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    match rustix::fs::openat(proc, "sys/net/ipv6/conf/default/disable_ipv6", flags, Mode::empty()) {
        Ok(file) => Ok(rustix::io::write(file, b"1").map(drop)?),
        // The kernel has no IPv6.
        Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
