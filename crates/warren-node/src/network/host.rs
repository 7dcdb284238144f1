//! What a home has on the machine for all its pods: a range of addresses, and a bridge with the gateway's.

use std::io;
use std::path::Path;

use warren_decide::network::{Block, choose};
use warren_sys::network::link::{self, Setting};
use warren_sys::network::netlink::Netlink;
use warren_sys::network::nftables;

use super::OpenError;

/// The file in the data directory that says which range the home has.
const RECORD: &str = "pod-network";

/// The range of a home: the one of last time if nobody else uses it now.
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
        // Whoever names one knows better.
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

/// Blocks that the machine has routes for, other than those of this home's own devices.
fn others(netlink: &mut Netlink, own: &str) -> io::Result<Vec<Block>> {
    let links = netlink.links()?;
    let is_own = |device: u32| links.iter().any(|(index, name)| *index == device && name.starts_with(own));
    let routes = netlink.routes()?.into_iter().filter(|(_, _, device)| !is_own(*device));
    Ok(routes.map(|(address, prefix, _)| Block::new(address, prefix)).collect())
}

/// Makes the bridge, or finds it: whether it is new.
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
    // With the whole range behind it: others on this machine see that it is in use, and packets for an address that no pod
    // has go nowhere.
    netlink.apply(&[Setting::Up { device }, Setting::Address { device, address, prefix: range.prefix() }])?;
    Ok(is_new)
}

/// Lets the machine send packets on from any device, as a way out for pods needs: answers come in through devices that are
/// not ours. Stays on, as other container engines leave it: by then somebody else may rely on it.
pub(super) fn forward_everywhere() -> io::Result<()> {
    const SWITCH: &str = "/proc/sys/net/ipv4/ip_forward";
    if std::fs::read_to_string(SWITCH)?.trim() == "1" {
        return Ok(());
    }
    tracing::info!("switching on the forwarding of packets for pods with a full network");
    std::fs::write(SWITCH, "1")
}

/// Removes devices of pods, should one be left, then the table, and the bridge last: it is the first that is made and says
/// that there may be a table, also to whoever goes on with this after we were killed.
pub(super) fn remove(bridge: &str, table: &str) -> io::Result<()> {
    let mut netlink = Netlink::route()?;
    let names = netlink.links()?.into_iter().map(|(_, name)| name);
    let ours: Vec<String> = names.filter(|name| name.starts_with(bridge)).collect();
    for name in ours.iter().filter(|name| *name != bridge) {
        delete(&mut netlink, name)?;
    }
    if !ours.is_empty() {
        // A kernel that knows no tables has none of ours either, so the bridge goes in any case.
        let removed = nftables::remove(table);
        delete(&mut netlink, bridge)?;
        removed?;
    }
    Ok(())
}

/// Deletes a device that may go by itself meanwhile.
fn delete(netlink: &mut Netlink, name: &str) -> io::Result<()> {
    match netlink.delete_link(name) {
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NODEV.raw_os_error()) => Ok(()),
        other => other,
    }
}
