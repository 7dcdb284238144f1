//! Reaches into a pod: runs a command in a container, or connects to a port.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use k8s_openapi::api::core::v1::Container;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use tokio::net::{TcpSocket, TcpStream};
use warren_oci::client::CallError;
use warren_oci::protocol::{Answer, Call, ExecRequest, ExitStatus, RefusalReason, Target};

use crate::descriptor::Descriptor;
use crate::network::Lease;
use crate::pod_request::PodDirectory;
use crate::shim::Shim;
use crate::worker::chain;

/// The longest part of a command's output that is kept; kubelet's number.
const KEPT_OUTPUT: usize = 10 << 10;

/// A container in a running pod.
pub(super) struct Inside {
    directory: PodDirectory,
    container: String,
    address: IpAddr,
    ports: Vec<(String, u16)>,
}

/// A guard that kills a command when its caller stops waiting.
struct Running {
    shim: Shim,
    exec: Option<u64>,
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(exec) = self.exec {
            let signal = rustix::process::Signal::KILL.as_raw();
            // If the shim is gone, so is the command.
            let _ = self.shim.tell(Call::Signal { target: Target::Exec(exec), signal });
        }
    }
}

impl Inside {
    pub(super) fn new(container: &Container, directory: &PodDirectory) -> Inside {
        // A pod without a network is reached on its own loopback.
        let lease = directory.lease().filter(Lease::is_reachable);
        let address = lease.map_or(Ipv4Addr::LOCALHOST, |lease| lease.address);
        let ports = container
            .ports
            .iter()
            .flatten()
            .filter_map(|port| Some((port.name.clone()?, u16::try_from(port.container_port).ok()?)));
        Inside {
            directory: directory.clone(),
            container: container.name.clone(),
            address: IpAddr::V4(address),
            ports: ports.collect(),
        }
    }

    pub(super) fn shim(&self) -> io::Result<Shim> {
        Shim::connect(&self.directory.0)
    }

    /// Runs a command to its end. Returns its exit status and output.
    pub(super) async fn run(&self, command: &[String]) -> Result<(ExitStatus, String), String> {
        let failed = |error: CallError| chain(&error);
        let shim = self.shim().map_err(|error| error.to_string())?;
        let mut running = Running { shim, exec: None };
        let request = ExecRequest {
            container: self.container.clone(),
            args: command.to_vec(),
            env: Vec::new(),
            cwd: None,
            user: None,
            terminal: None,
            stdin: false,
        };
        let (answer, descriptors) = running.shim.call(Call::Exec(request)).await.map_err(failed)?;
        let Answer::Exec { exec, .. } = answer else { return Err("the shim did not start it".to_owned()) };
        running.exec = Some(exec);
        let outputs = descriptors.into_iter().map(Descriptor::new).collect::<io::Result<Vec<_>>>();
        let outputs = outputs.map_err(|error| error.to_string())?;
        let reading = futures::future::join_all(outputs.iter().map(read));
        let (texts, exit) = tokio::join!(reading, running.shim.exec_exit(exec));
        let exit = exit.map_err(|error| error.to_string())?;
        running.exec = None;
        let mut said = texts.concat();
        said.truncate(KEPT_OUTPUT);
        let said = String::from_utf8_lossy(&said).into_owned();
        Ok((exit, said))
    }

    /// Connects to a port of the container from within the pod's network.
    pub(super) async fn connect(&self, host: Option<&str>, port: &IntOrString) -> Result<TcpStream, String> {
        let address = self.socket_address(host, port)?;
        let mut shim = self.shim().map_err(|error| error.to_string())?;
        let call = Call::Socket { version_6: address.is_ipv6() };
        let connected = match shim.call(call).await {
            Ok((_, descriptors)) => {
                let socket = descriptors.into_iter().next().ok_or("the shim gave no socket")?;
                // The socket is not connected yet, despite its type. A socket stays in the network
                // that it was made in.
                TcpSocket::from_std_stream(std::net::TcpStream::from(socket)).connect(address).await
            }
            // This runtime has its own network. Connect from the host to the pod's address; any
            // other address would be the machine's own.
            Err(CallError::Refused(refusal))
                if refusal.reason == RefusalReason::Unsupported
                    && self.address == address.ip()
                    && !address.ip().is_loopback() =>
            {
                TcpStream::connect(address).await
            }
            Err(error) => return Err(chain(&error)),
        };
        connected.map_err(|error| format!("dial tcp {address}: connect: {error}"))
    }

    /// Resolves a port to an address. Names of other hosts cannot be looked up from within the pod.
    pub(super) fn socket_address(
        &self,
        host: Option<&str>,
        port: &IntOrString,
    ) -> Result<SocketAddr, String> {
        let port = match port {
            IntOrString::Int(number) => u16::try_from(*number).ok().filter(|port| *port > 0),
            IntOrString::String(name) => name
                .parse()
                .ok()
                .or_else(|| self.ports.iter().find(|(known, _)| known == name).map(|(_, port)| *port)),
        };
        let port = port.ok_or("couldn't find the port in the container")?;
        let address = match host.filter(|host| !host.is_empty()) {
            None => self.address,
            Some("localhost") => IpAddr::V4(Ipv4Addr::LOCALHOST),
            Some(host) => host.parse().map_err(|_| format!("host {host:?} is not an address"))?,
        };
        Ok(SocketAddr::new(address, port))
    }
}

/// Reads to the end and keeps the beginning.
async fn read(output: &Descriptor) -> Vec<u8> {
    let mut kept = Vec::new();
    let mut buffer = [0; 4096];
    while let Ok(length @ 1..) = output.read(&mut buffer).await {
        let room = KEPT_OUTPUT.saturating_sub(kept.len());
        kept.extend_from_slice(&buffer[..length.min(room)]);
    }
    kept
}
