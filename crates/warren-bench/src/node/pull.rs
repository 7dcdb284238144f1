//! An image to pull, and a registry on this machine to pull it from.

use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::thread::JoinHandle;

use anyhow::Context;
use serde_json::json;
use warren_sys::namespace;
use warren_testkit::images::{Layer, TestImage};
use warren_testkit::registry::TestRegistry;

/// As many as are usually fetched at the same time.
const LAYERS: usize = 4;
const BYTES_PER_LAYER: usize = 24 << 20;
/// Files as long as those in images of programs: most are short, the bytes are in the long ones.
const BYTES_PER_FILE: usize = 256 << 10;

const REPOSITORY: &str = "bench/image";
const TAG: &str = "1";

/// An image of four layers, about as compressible as programs are.
#[derive(Clone)]
pub struct Image(Arc<TestImage>);

impl Image {
    /// Makes it. The same each time.
    pub fn make() -> Image {
        let mut random = fastrand::Rng::with_seed(1);
        let layers = (0..LAYERS).map(|number| {
            let empty = Layer::new().directory(&format!("layer-{number}"), 0o755, 0);
            (0..BYTES_PER_LAYER / BYTES_PER_FILE).fold(empty, |layer, file| {
                // Six bits in eight.
                let content: Vec<u8> = (0..BYTES_PER_FILE).map(|_| random.u8(..64)).collect();
                layer.file(&format!("layer-{number}/file-{file}"), 0o644, 0, &content)
            })
        });
        let layers = layers.collect();
        Image(Arc::new(TestImage::new(json!({}), layers)))
    }

    /// How much it is on disk.
    pub fn megabytes(&self) -> f64 {
        (LAYERS * BYTES_PER_LAYER) as f64 / 1e6
    }

    /// A registry that has it, and its name there.
    pub fn serve(&self) -> anyhow::Result<(TestRegistry, String)> {
        let registry = TestRegistry::start().context("start a registry")?;
        registry.put(REPOSITORY, TAG, &self.0);
        let name = registry.image(REPOSITORY, TAG);
        Ok((registry, name))
    }

    /// A registry on the loopback of the network that a process is in.
    pub fn serve_beside(&self, pid: u32) -> anyhow::Result<Beside> {
        let network = namespace::open(i32::try_from(pid)?, "net").context("open the network of a process")?;
        let (told, name) = mpsc::channel();
        let (stop, stopped) = mpsc::channel::<()>();
        let image = self.clone();
        // A socket belongs to the network that its maker was in. The registry ends in there, too: it calls itself then.
        let thread = std::thread::spawn(move || {
            let enter = || {
                namespace::enter_one(network.as_fd()).context("enter the network of a process")?;
                namespace::loopback_up().context("bring its loopback up")?;
                image.serve()
            };
            match enter() {
                Ok((registry, name)) => {
                    // Whoever asked waits for it.
                    let _ = told.send(Ok(name));
                    // Ends when the other end is dropped.
                    let _ = stopped.recv();
                    drop(registry);
                }
                Err(error) => drop(told.send(Err(error))),
            }
        });
        let name = name.recv().context("the registry's thread ended")??;
        Ok(Beside { name, stop: Some(stop), thread: Some(thread) })
    }
}

/// A registry in another network. It ends when this is dropped.
pub struct Beside {
    /// The name of the image in it.
    pub name: String,
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Beside {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
