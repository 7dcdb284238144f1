//! The namespaces of a pod without a container in them, for runtimes that take namespaces by path.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use warren_sys::namespace;
use warren_sys::process::{self, Child, CloneOptions, Fork, Namespaces};
use warren_sys::socket::Seqpacket;

use super::rootfs::{Step, StepError};
use super::{Listeners, Network, PodNamespaces, Workshop, child, pod_network};
use crate::kernel;
use crate::protocol::{PodNetwork, PodRequest};

/// Makes the namespaces, with the pod's device if it has a network. They live as long as the shim
/// holds them.
pub(super) fn make(workshop: &Workshop, pod: &PodRequest) -> Result<PodNamespaces, StepError> {
    let step = || "make the pod's namespaces".to_owned();
    let (ours, theirs) = Seqpacket::pair().step(step)?;
    let namespaces = Namespaces::USER.with(Namespaces::IPC).with(Namespaces::UTS);
    let options = CloneOptions { namespaces, sibling: false, cgroup: None };
    let helper =
        match process::clone(workshop.proof, options).map_err(kernel::explain_namespaces).step(step)? {
            Fork::Child => {
                drop(ours);
                // Send the error, if any: the shim waits for one message.
                if let Err(error) = settle(pod, &theirs) {
                    let _ = theirs.send(format!("{}: {}", error.step, error.source).as_bytes(), &[]);
                }
                // The shim closes its end after it has opened the namespaces.
                let _ = theirs.receive(16);
                process::exit_now(0)
            }
            Fork::Parent(helper) => helper,
        };
    drop(theirs);
    let made = take(pod, &helper, &ours);
    drop(ours);
    let _ = helper.wait();
    let made = made?;
    if let (Some(wanted), Network::Here(namespace)) = (&pod.network, &made.network) {
        pod_network::connect(wanted, namespace.as_fd()).step(|| "make the network devices".to_owned())?;
    }
    Ok(made)
}

/// Does the new process's part, which needs to be inside.
fn settle(pod: &PodRequest, shim: &Seqpacket) -> Result<(), StepError> {
    child::die_with_parent()?;
    rustix::system::sethostname(pod.hostname.as_bytes()).step(|| "set the host name".to_owned())?;
    let network = child::make_network()?;
    if pod.network.is_some() || !pod.sysctls.is_empty() {
        let proc = fs::File::open("/proc").step(|| "open /proc".to_owned())?;
        if pod.network.is_some() {
            pod_network::without_version_6(proc.as_fd()).step(|| "switch off IP version 6".to_owned())?;
        }
        child::set_parameters(proc.as_fd(), &pod.sysctls)?;
    }
    shim.send(b"net", &[network.as_fd()]).step(|| "hand over the network namespace".to_owned())
}

/// Does the shim's part: writes the id maps and opens each namespace.
fn take(pod: &PodRequest, helper: &Child, socket: &Seqpacket) -> Result<PodNamespaces, StepError> {
    let pid = helper.pid();
    let map = format!("0 {} {}\n", pod.ids.first, pod.ids.length);
    for name in ["uid_map", "gid_map"] {
        fs::write(format!("/proc/{pid}/{name}"), &map).step(|| format!("write {name}"))?;
    }
    let open = |kind: &str| namespace::open(pid, kind).step(|| format!("open the {kind} namespace"));
    let (user, ipc, uts) = (open("user")?, open("ipc")?, open("uts")?);
    let step = || "take over the network namespace".to_owned();
    let packet =
        socket.receive(4096).step(step)?.ok_or(io::ErrorKind::UnexpectedEof).map_err(io::Error::from);
    let packet = packet.step(step)?;
    let network: Option<OwnedFd> = packet.descriptors.into_iter().next();
    let said = || io::Error::other(String::from_utf8_lossy(&packet.bytes).into_owned());
    let network = network.ok_or_else(said).step(step)?;
    Ok(PodNamespaces {
        user,
        ipc,
        uts,
        network: Network::Here(network),
        listeners: Listeners::default(),
        layers: Vec::new(),
    })
}

impl PodNamespaces {
    /// Sets the address and routes of the pod's device. It is repeated for a runtime with its own
    /// network stack, which takes them away from the kernel.
    pub(super) fn configure(&mut self, network: &PodNetwork) -> io::Result<()> {
        self.inside_network(|| pod_network::configure(network))
    }

    /// Runs a function in the pod's network namespace, and returns to the shim's own. The shim
    /// itself uses no network. An ordinary user's shim can return because the zygote has left the
    /// machine's network for one of its own.
    pub(super) fn inside_network<T>(&mut self, work: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let own = namespace::open(0, "net")?;
        let [network, ..] = self.complete()?;
        namespace::enter_one(network)?;
        let done = work();
        namespace::enter_one(own.as_fd())?;
        done
    }
}
