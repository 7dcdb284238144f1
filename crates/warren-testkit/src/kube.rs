//! A real Kubernetes control plane on this machine: etcd, kube-apiserver, kube-controller-manager,
//! kube-scheduler.
//!
//! One *supervisor* process per control plane starts the four components as its children and lives
//! as long as they do. Each component asks the kernel to be killed when the supervisor ends
//! ([`run_component`]). So everything ends with the supervisor, however that ends: by `down`, by
//! the end of the test that wanted it, or by `kill -9`. No signal handler is needed. Each control
//! plane has one directory on disk: `kubeconfig`, `record.json`, `pki/`, `etcd/`, `logs/`.
//!
//! Reading order: [`guard`](ControlPlane) for tests; [`supervisor`](Supervisor) for start and end;
//! `components` for the command lines; `binaries` and `go_build` for the programs.

mod binaries;
mod cache;
mod components;
mod directory;
mod go_build;
mod guard;
mod kubeconfig;
mod logs;
mod pki;
mod ports;
mod process;
mod record;
mod runsc;
mod supervisor;

pub use binaries::{Binaries, BinariesError};
pub use cache::{Cache, CacheError};
pub use directory::{ClaimError, claim_directory};
pub use go_build::BuildError;
pub use guard::{ControlPlane, ControlPlaneError, KubectlError};
pub use pki::PkiError;
pub use process::{EndError, ProcessIdentity, end_and_wait};
pub use record::{DownError, Listed, Record, directory_of, down, list};
pub use runsc::{GVISOR_VERSION, build_runsc, find_runsc};
pub use supervisor::{Lifetime, Settings, StartError, Supervisor, run_component};

pub use crate::files::FileError;

/// The Kubernetes release of the tests.
pub const KUBERNETES_VERSION: &str = "v1.36.3";

/// The etcd release that Kubernetes 1.36 is developed with: the version of its client in that
/// release's `go.mod`.
pub const ETCD_VERSION: &str = "v3.6.8";

/// The arguments of `xtask` for [`run_component`]. The supervisor starts each component with them.
pub const RUN_COMPONENT: [&str; 2] = ["kube", "run-component"];
