//! Manages a home's shared network on the machine: a range of addresses, and a bridge with the
//! gateway's address.

use std::io;
use std::path::Path;

use warren_decide::network::{Block, choose};
use warren_sys::network::link::{self, Setting};
use warren_sys::network::netlink::Netlink;
use warren_sys::network::nftables;

use super::OpenError;

/// The file in the data directory that records the home's range.
const RECORD: &str = "pod-network";

/// Chooses the range of a home: the recorded one, if it is still free.
pub(super) fn choose_range(
    bridge: &str,
    home_id: &str,
    data_dir: &Path,
    wanted: Option<Block>,
) -> Result<Block, OpenError> {
    let mut netlink = Netlink::route().map_err(OpenError::Routes)?;
    let path = data_dir.join(RECORD);
    let recorded = std::fs::read_to_string(&path).ok().and_then(|text| text.trim().parse::<Block>().ok());
    let taken = others(&mut netlink, bridge).map_err(OpenError::Routes)?;
    let is_free = |range: &Block| !taken.iter().any(|taken| taken.prefix() > 0 && taken.overlaps(*range));
    let range = match wanted {
        // A configured range is used without a check.
        Some(range) => range,
        None => match recorded.filter(is_free) {
            Some(range) => range,
            None => choose(home_id, &taken).ok_or(OpenError::NoRange)?,
        },
    };
    if recorded != Some(range) {
        if recorded.is_some() {
            // It has the former gateway's address.
            let _ = netlink.delete_link(bridge);
        }
        let written = std::fs::write(&path, format!("{range}\n"));
        written.map_err(|source| OpenError::Record { path, source })?;
    }
    Ok(range)
}

/// Returns the blocks that the machine has routes for, except those of this home's own devices.
fn others(netlink: &mut Netlink, own: &str) -> io::Result<Vec<Block>> {
    let links = netlink.links()?;
    let is_own = |device: u32| links.iter().any(|(index, name)| *index == device && name.starts_with(own));
    let routes = netlink.routes()?.into_iter().filter(|(_, _, device)| !is_own(*device));
    Ok(routes.map(|(address, prefix, _)| Block::new(address, prefix)).collect())
}

/// Makes the bridge, or finds it. Returns true if it is new.
pub(super) fn make_bridge(name: &str, range: Block) -> Result<bool, OpenError> {
    try_make_bridge(name, range).map_err(|source| OpenError::Bridge { name: name.to_owned(), source })
}

fn try_make_bridge(name: &str, range: Block) -> io::Result<bool> {
    let mut netlink = Netlink::route()?;
    let is_new = match netlink.add_bridge(name) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
        other => other.map(|()| true)?,
    };
    let device = link::index(name)?;
    let address = range.nth(1).ok_or(io::ErrorKind::InvalidInput)?;
    // The address covers the whole range: other programs on this machine see that it is in use, and
    // packets for an unused address are dropped.
    netlink.apply(&[Setting::Up { device }, Setting::Address { device, address, prefix: range.prefix() }])?;
    Ok(is_new)
}

/// Enables forwarding on all devices, as a route out for pods needs: answers arrive on devices that
/// are not ours. It stays enabled, as with other container engines: by then other programs may rely
/// on it.
pub(super) fn forward_everywhere() -> io::Result<()> {
    const SWITCH: &str = "/proc/sys/net/ipv4/ip_forward";
    if std::fs::read_to_string(SWITCH)?.trim() == "1" {
        return Ok(());
    }
    tracing::info!("switching on the forwarding of packets for pods with a full network");
    std::fs::write(SWITCH, "1")
}

/// Removes remaining devices of pods, then the table, and the bridge last. The bridge is made
/// first, so it shows that there may be a table, even to a process that continues after this one
/// was killed.
pub(super) fn remove(bridge: &str, table: &str) -> io::Result<()> {
    let mut netlink = Netlink::route()?;
    let names = netlink.links()?.into_iter().map(|(_, name)| name);
    let ours: Vec<String> = names.filter(|name| name.starts_with(bridge)).collect();
    for name in ours.iter().filter(|name| *name != bridge) {
        delete(&mut netlink, name)?;
    }
    if !ours.is_empty() {
        // A kernel without nftables has no table of ours either, so the bridge goes in any case.
        let removed = nftables::remove(table);
        delete(&mut netlink, bridge)?;
        removed?;
    }
    Ok(())
}

/// Deletes a device, which may vanish by itself meanwhile.
fn delete(netlink: &mut Netlink, name: &str) -> io::Result<()> {
    match netlink.delete_link(name) {
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NODEV.raw_os_error()) => Ok(()),
        other => other,
    }
}
