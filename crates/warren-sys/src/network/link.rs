//! Network devices, addresses and routes.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};

use super::netlink::{Message, Netlink, flags};

const NEW_LINK: u16 = 16;
const DELETE_LINK: u16 = 17;
const GET_LINK: u16 = 18;
const NEW_ADDRESS: u16 = 20;
const NEW_ROUTE: u16 = 24;
const GET_ROUTE: u16 = 26;
const NEW_NEIGHBOUR: u16 = 28;

const LINK_ADDRESS: u16 = 1;
const LINK_NAME: u16 = 3;
const LINK_INFO: u16 = 18;
const OF_FAMILIES: u16 = 26;
const LINK_NAMESPACE: u16 = 28;
const INFO_KIND: u16 = 1;
const INFO_DATA: u16 = 2;
const VETH_PEER: u16 = 1;

const LINK_FIXED: usize = 16;
const ROUTE_FIXED: usize = 12;

/// The hardware address of a device.
pub type HardwareAddress = [u8; 6];

/// Two connected devices, one here and one in another network namespace. Both are down.
#[derive(Debug, Clone, Copy)]
pub struct Veth<'a> {
    /// The name of the local end, at most 15 bytes.
    pub name: &'a str,
    /// The hardware address of the local end.
    pub hardware: HardwareAddress,
    /// The name of the remote end.
    pub peer_name: &'a str,
    /// The hardware address of the remote end.
    pub peer_hardware: HardwareAddress,
    /// The namespace of the remote end.
    pub namespace: BorrowedFd<'a>,
}

/// A route.
#[derive(Debug, Clone, Copy)]
pub struct Route {
    /// The destination.
    pub destination: Ipv4Addr,
    /// The prefix length of the destination.
    pub prefix: u8,
    /// The number of the device.
    pub device: u32,
    /// The next hop. `None` if the destinations are neighbours.
    pub gateway: Option<Ipv4Addr>,
    /// The source address of this machine's packets on this route.
    pub source: Option<Ipv4Addr>,
}

/// Builds the `struct ifinfomsg` that brings a device up.
fn link_up() -> [u8; LINK_FIXED] {
    let mut fixed = [0; LINK_FIXED];
    let up = (libc::IFF_UP as u32).to_ne_bytes();
    fixed[8..12].copy_from_slice(&up);
    fixed[12..16].copy_from_slice(&up);
    fixed
}

/// Returns the number of a device in this network namespace.
pub fn index(name: &str) -> io::Result<u32> {
    let socket = Netlink::route()?;
    Ok(rustix::net::netdevice::name_to_index(socket.as_fd(), name)?)
}

impl Netlink {
    /// Makes a bridge without ports and brings it up. Fails with `AlreadyExists` if a device has
    /// that name.
    pub fn add_bridge(&mut self, name: &str) -> io::Result<()> {
        let mut message = Message::new(NEW_LINK, flags::CREATE | flags::EXCLUSIVE, &link_up());
        message.text(LINK_NAME, name).nested(LINK_INFO, |info| {
            info.text(INFO_KIND, "bridge");
        });
        self.request(&[message])
    }

    /// Makes a pair of devices. Fails with `AlreadyExists` if a device has that name.
    pub fn add_veth(&mut self, veth: &Veth<'_>) -> io::Result<()> {
        let namespace = u32::try_from(veth.namespace.as_raw_fd()).unwrap_or_default();
        let mut message = Message::new(NEW_LINK, flags::CREATE | flags::EXCLUSIVE, &[0; LINK_FIXED]);
        message.text(LINK_NAME, veth.name).bytes(LINK_ADDRESS, &veth.hardware).nested(LINK_INFO, |info| {
            info.text(INFO_KIND, "veth").nested(INFO_DATA, |data| {
                data.nested(VETH_PEER, |peer| {
                    peer.raw(&[0; LINK_FIXED])
                        .text(LINK_NAME, veth.peer_name)
                        .bytes(LINK_ADDRESS, &veth.peer_hardware)
                        .number(LINK_NAMESPACE, namespace);
                });
            });
        });
        self.request(&[message])
    }

    /// Removes a device. For a pair, removes both.
    pub fn delete_link(&mut self, name: &str) -> io::Result<()> {
        let mut message = Message::new(DELETE_LINK, 0, &[0; LINK_FIXED]);
        message.text(LINK_NAME, name);
        self.request(&[message])
    }

    /// Returns the number and name of every device.
    pub fn links(&mut self) -> io::Result<Vec<(u32, String)>> {
        let links = self.dump(&Message::new(GET_LINK, 0, &[0; LINK_FIXED]))?;
        let names = links.iter().filter(|link| link.kind == NEW_LINK).filter_map(|link| {
            let index = link.body.get(4..8).and_then(|bytes| <[u8; 4]>::try_from(bytes).ok())?;
            let name = link.attribute(LINK_FIXED, LINK_NAME)?;
            let name = String::from_utf8_lossy(name.strip_suffix(&[0]).unwrap_or(name)).into_owned();
            Some((u32::from_ne_bytes(index), name))
        });
        Ok(names.collect())
    }

    /// Returns the destinations of all IPv4 routes with their devices, as (address, prefix,
    /// device). The prefix of the default route is 0.
    pub fn routes(&mut self) -> io::Result<Vec<(Ipv4Addr, u8, u32)>> {
        const DESTINATION: u16 = 1;
        const DEVICE: u16 = 4;
        let mut fixed = [0; ROUTE_FIXED];
        fixed[0] = libc::AF_INET as u8;
        let routes = self.dump(&Message::new(GET_ROUTE, 0, &fixed))?;
        let word = |bytes: &[u8]| <[u8; 4]>::try_from(bytes).ok();
        let found = routes.iter().filter(|route| route.kind == NEW_ROUTE).filter_map(|route| {
            let prefix = *route.body.get(1)?;
            let address = route.attribute(ROUTE_FIXED, DESTINATION).and_then(word).unwrap_or_default();
            let device = route.attribute(ROUTE_FIXED, DEVICE).and_then(word).unwrap_or_default();
            Some((Ipv4Addr::from(address), prefix, u32::from_ne_bytes(device)))
        });
        Ok(found.collect())
    }

    /// Applies several settings with one message.
    pub fn apply(&mut self, settings: &[Setting]) -> io::Result<()> {
        let messages: Vec<Message> = settings.iter().map(Setting::message).collect();
        self.request(&messages)
    }
}

/// One setting. All of them are idempotent.
#[derive(Debug, Clone, Copy)]
pub enum Setting {
    /// Brings a device up.
    Up {
        /// The device.
        device: u32,
    },
    /// Adds an address to a device.
    Address {
        /// The device.
        device: u32,
        /// The address.
        address: Ipv4Addr,
        /// The prefix length.
        prefix: u8,
    },
    /// Allows forwarding of packets that arrive through a device.
    Forward {
        /// The device.
        device: u32,
    },
    /// Keeps a device from getting an IPv6 address when it comes up. Fails with `EAFNOSUPPORT`
    /// without IPv6.
    NoVersion6Address {
        /// The device.
        device: u32,
    },
    /// Adds a route.
    Route(Route),
    /// Sets a neighbour's hardware address, so that no address resolution is needed.
    Neighbour {
        /// The device.
        device: u32,
        /// The neighbour.
        address: Ipv4Addr,
        /// Its hardware address.
        hardware: HardwareAddress,
    },
}

impl Setting {
    fn message(&self) -> Message {
        match self {
            Setting::Up { device } => {
                let mut fixed = link_up();
                fixed[4..8].copy_from_slice(&device.to_ne_bytes());
                Message::new(NEW_LINK, 0, &fixed)
            }
            Setting::Forward { device } => {
                const CONFIGURATION: u16 = 1;
                const FORWARDING: u16 = 1;
                of_family(*device, libc::AF_INET, |version_4| {
                    version_4.nested(CONFIGURATION, |configuration| {
                        configuration.number(FORWARDING, 1);
                    });
                })
            }
            Setting::NoVersion6Address { device } => {
                const HOW_TO_MAKE_ADDRESSES: u16 = 8;
                const NOT_AT_ALL: u8 = 1;
                of_family(*device, libc::AF_INET6, |version_6| {
                    version_6.bytes(HOW_TO_MAKE_ADDRESSES, &[NOT_AT_ALL]);
                })
            }
            Setting::Address { device, address, prefix } => {
                const ADDRESS: u16 = 1;
                const LOCAL: u16 = 2;
                let mut fixed = [libc::AF_INET as u8, *prefix, 0, 0, 0, 0, 0, 0];
                fixed[4..].copy_from_slice(&device.to_ne_bytes());
                let mut message = Message::new(NEW_ADDRESS, flags::CREATE | flags::REPLACE, &fixed);
                message.bytes(LOCAL, &address.octets()).bytes(ADDRESS, &address.octets());
                message
            }
            Setting::Route(route) => route.message(),
            Setting::Neighbour { device, address, hardware } => {
                const DESTINATION: u16 = 1;
                const HARDWARE: u16 = 2;
                const PERMANENT: u16 = 0x80;
                let mut fixed = [0; 12];
                fixed[0] = libc::AF_INET as u8;
                fixed[4..8].copy_from_slice(&device.to_ne_bytes());
                fixed[8..10].copy_from_slice(&PERMANENT.to_ne_bytes());
                let mut message = Message::new(NEW_NEIGHBOUR, flags::CREATE | flags::REPLACE, &fixed);
                message.bytes(DESTINATION, &address.octets()).bytes(HARDWARE, hardware);
                message
            }
        }
    }
}

/// Builds settings of a device for one address family.
fn of_family(device: u32, family: i32, fill: impl FnOnce(&mut Message)) -> Message {
    let mut fixed = [0; LINK_FIXED];
    fixed[4..8].copy_from_slice(&device.to_ne_bytes());
    let mut message = Message::new(NEW_LINK, 0, &fixed);
    message.nested(OF_FAMILIES, |families| {
        families.nested(family as u16, fill);
    });
    message
}

impl Route {
    fn message(&self) -> Message {
        const DESTINATION: u16 = 1;
        const DEVICE: u16 = 4;
        const GATEWAY: u16 = 5;
        const SOURCE: u16 = 7;
        const MAIN_TABLE: u8 = 254;
        /// The route's origin: an administrator, not the kernel.
        const STATIC: u8 = 4;
        const SCOPE_UNIVERSE: u8 = 0;
        const SCOPE_LINK: u8 = 253;
        const UNICAST: u8 = 1;
        let scope = if self.gateway.is_some() { SCOPE_UNIVERSE } else { SCOPE_LINK };
        let fixed = [libc::AF_INET as u8, self.prefix, 0, 0, MAIN_TABLE, STATIC, scope, UNICAST, 0, 0, 0, 0];
        let mut message = Message::new(NEW_ROUTE, flags::CREATE | flags::REPLACE, &fixed);
        if self.prefix > 0 {
            message.bytes(DESTINATION, &self.destination.octets());
        }
        message.number(DEVICE, self.device);
        if let Some(gateway) = self.gateway {
            message.bytes(GATEWAY, &gateway.octets());
        }
        if let Some(source) = self.source {
            message.bytes(SOURCE, &source.octets());
        }
        message
    }
}
