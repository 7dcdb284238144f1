//! Allocation of cluster addresses and node ports to services. Each is given to one service only.

use std::collections::HashSet;
use std::net::Ipv4Addr;
use std::sync::{Mutex, PoisonError};

use serde_json::{Value, json};
use warren_store::{Filter, ListRequest, Store};

use crate::metadata;
use crate::status::{ApiError, FieldError, Subject};

/// The range of cluster addresses: the default of kubeadm.
const SERVICE_RANGE: (Ipv4Addr, u32) = (Ipv4Addr::new(10, 96, 0, 0), 12);
/// The range of node ports: the default of Kubernetes.
const NODE_PORTS: std::ops::RangeInclusive<u16> = 30_000..=32_767;

/// The addresses and ports in use.
pub(crate) struct Allocation {
    used: Mutex<Used>,
}

#[derive(Default)]
struct Used {
    addresses: HashSet<Ipv4Addr>,
    ports: HashSet<u16>,
}

/// The values that one write allocated. They are released if the write fails.
#[derive(Debug, Default)]
pub(crate) struct Taken {
    address: Option<Ipv4Addr>,
    ports: Vec<u16>,
}

fn address(service: &Value) -> Option<Ipv4Addr> {
    service["spec"]["clusterIP"].as_str()?.parse().ok()
}

fn ports(service: &Value) -> Vec<u16> {
    let ports = service["spec"]["ports"].as_array().into_iter().flatten();
    let ports = ports.filter_map(|port| u16::try_from(port["nodePort"].as_u64()?).ok());
    ports.filter(|port| *port > 0).collect()
}

impl Allocation {
    /// Collects the values that the services of a store use.
    pub fn of(store: &Store) -> Allocation {
        let resource = "services".into();
        let filter = Filter::default();
        let request =
            ListRequest { resource: &resource, filter: &filter, limit: None, after: None, at: None };
        let services = store.list(&request).map(|list| list.items).unwrap_or_default();
        let mut used = Used::default();
        for service in services {
            let service = service.value();
            used.addresses.extend(address(&service));
            used.ports.extend(ports(&service));
        }
        Allocation { used: Mutex::new(used) }
    }

    /// Allocates the missing values of a service. Values of `old`, the previous version, are kept.
    pub fn allocate(&self, service: &mut Value, old: Option<&Value>) -> Result<Taken, ApiError> {
        let spec = &service["spec"];
        if spec["type"] == "ExternalName" {
            return Ok(Taken::default());
        }
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let mut taken = Taken::default();
        let outcome = allocate_address(&mut used, service, old, &mut taken)
            .and_then(|()| allocate_ports(&mut used, service, old, &mut taken));
        match outcome {
            Ok(()) => Ok(taken),
            Err(error) => {
                used.release(&taken);
                let name = metadata::text(service, "name");
                Err(ApiError::invalid(Subject { group: "", kind: "Service", name }, vec![*error]))
            }
        }
    }

    /// Releases the values that a failed write had allocated.
    pub fn release(&self, taken: &Taken) {
        self.used.lock().unwrap_or_else(PoisonError::into_inner).release(taken);
    }

    /// Releases the values that a service no longer uses, after it was written or deleted.
    pub fn written(&self, previous: &Value, current: Option<&Value>) {
        let kept = |port: &u16| current.is_some_and(|current| ports(current).contains(port));
        let taken = Taken {
            address: address(previous).filter(|_| current.and_then(address) != address(previous)),
            ports: ports(previous).into_iter().filter(|port| !kept(port)).collect(),
        };
        self.release(&taken);
    }
}

impl Used {
    fn release(&mut self, taken: &Taken) {
        if let Some(address) = &taken.address {
            self.addresses.remove(address);
        }
        for port in &taken.ports {
            self.ports.remove(port);
        }
    }
}

fn allocate_address(
    used: &mut Used,
    service: &mut Value,
    old: Option<&Value>,
    taken: &mut Taken,
) -> Result<(), Box<FieldError>> {
    if service["spec"]["clusterIP"] == "None" {
        service["spec"]["clusterIPs"] = json!(["None"]);
        return Ok(());
    }
    let wanted = service["spec"]["clusterIP"].as_str().filter(|text| !text.is_empty());
    if old.is_some_and(|old| address(old).is_some() && address(old) == address(service)) {
        return Ok(());
    }
    let address = match wanted {
        Some(text) => {
            text.parse().ok().filter(|address| !used.addresses.contains(address)).ok_or_else(|| {
                let detail = format!("failed to allocate IP {text}: provided IP is already allocated");
                FieldError::invalid("spec.clusterIPs", json!([text]), detail)
            })?
        }
        None => free_address(&used.addresses).ok_or_else(|| {
            FieldError::invalid("spec.clusterIPs", json!([]), "failed to allocate IP: range is full")
        })?,
    };
    used.addresses.insert(address);
    taken.address = Some(address);
    service["spec"]["clusterIP"] = address.to_string().into();
    service["spec"]["clusterIPs"] = json!([address.to_string()]);
    Ok(())
}

/// Returns a free address. The search starts at a random offset, so that a released address is not
/// reused at once.
fn free_address(used: &HashSet<Ipv4Addr>) -> Option<Ipv4Addr> {
    let (base, prefix) = SERVICE_RANGE;
    let size = 1u32 << (32 - prefix);
    let start = fastrand::u32(1..size - 1);
    // The first and last address of the range are never allocated.
    (0..size - 2)
        .map(|offset| Ipv4Addr::from(u32::from(base) + 1 + (start + offset) % (size - 2)))
        .find(|address| !used.contains(address))
}

fn allocate_ports(
    used: &mut Used,
    service: &mut Value,
    old: Option<&Value>,
    taken: &mut Taken,
) -> Result<(), Box<FieldError>> {
    let spec = &service["spec"];
    let wants = spec["type"] == "NodePort"
        || (spec["type"] == "LoadBalancer" && spec["allocateLoadBalancerNodePorts"] != false);
    if !wants {
        return Ok(());
    }
    let before = old.map(ports).unwrap_or_default();
    let list = service.get_mut("spec").and_then(|spec| spec.get_mut("ports")).and_then(Value::as_array_mut);
    for (index, port) in list.into_iter().flatten().enumerate() {
        let field = format!("spec.ports[{index}].nodePort");
        let wanted = port["nodePort"].as_u64().filter(|wanted| *wanted > 0);
        let chosen = match wanted {
            Some(wanted) => {
                let chosen = u16::try_from(wanted).ok().filter(|wanted| NODE_PORTS.contains(wanted));
                let chosen = chosen.ok_or_else(|| {
                    let detail = format!(
                        "provided port is not in the valid range. The range of valid ports is {}-{}",
                        NODE_PORTS.start(),
                        NODE_PORTS.end()
                    );
                    FieldError::invalid(field.as_str(), wanted, detail)
                })?;
                if before.contains(&chosen) {
                    continue;
                }
                if used.ports.contains(&chosen) {
                    let detail = "provided port is already allocated";
                    return Err(FieldError::invalid(field, wanted, detail).into());
                }
                chosen
            }
            None => free_port(&used.ports).ok_or_else(|| {
                FieldError::invalid(field, 0, "failed to allocate a nodePort: range is full")
            })?,
        };
        used.ports.insert(chosen);
        taken.ports.push(chosen);
        port["nodePort"] = chosen.into();
    }
    Ok(())
}

fn free_port(used: &HashSet<u16>) -> Option<u16> {
    let size = NODE_PORTS.end() - NODE_PORTS.start() + 1;
    let start = fastrand::u16(..size);
    (0..size).map(|offset| NODE_PORTS.start() + (start + offset) % size).find(|port| !used.contains(port))
}
