//! An image to pull, and a registry for it on this machine.

use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::thread::JoinHandle;

use anyhow::Context;
use serde_json::json;
use warren_sys::namespace;
use warren_testkit::images::{Layer, TestImage};
use warren_testkit::registry::TestRegistry;

/// The number of layers: as many as clients usually fetch at once.
const LAYERS: usize = 4;
const BYTES_PER_LAYER: usize = 24 << 20;
/// The size of files. In real images most files are short, but most bytes are in long ones.
const BYTES_PER_FILE: usize = 256 << 10;

const REPOSITORY: &str = "bench/image";
const TAG: &str = "1";

/// An image of four layers, about as compressible as programs.
#[derive(Clone)]
pub struct Image(Arc<TestImage>);

impl Image {
    /// Makes the image. It is the same each time.
    pub fn make() -> Image {
        let mut random = fastrand::Rng::with_seed(1);
        let layers = (0..LAYERS).map(|number| {
            let empty = Layer::new().directory(&format!("layer-{number}"), 0o755, 0);
            (0..BYTES_PER_LAYER / BYTES_PER_FILE).fold(empty, |layer, file| {
                // Six random bits in eight.
                let content: Vec<u8> = (0..BYTES_PER_FILE).map(|_| random.u8(..64)).collect();
                layer.file(&format!("layer-{number}/file-{file}"), 0o644, 0, &content)
            })
        });
        let layers = layers.collect();
        Image(Arc::new(TestImage::new(json!({}), layers)))
    }

    /// Returns its size on disk.
    pub fn megabytes(&self) -> f64 {
        (LAYERS * BYTES_PER_LAYER) as f64 / 1e6
    }

    /// Starts a registry that has it. Also returns its name there.
    pub fn serve(&self) -> anyhow::Result<(TestRegistry, String)> {
        let registry = TestRegistry::start().context("start a registry")?;
        registry.put(REPOSITORY, TAG, &self.0);
        let name = registry.image(REPOSITORY, TAG);
        Ok((registry, name))
    }

    /// Starts a registry on the loopback of a process's network namespace.
    pub fn serve_beside(&self, pid: u32) -> anyhow::Result<Beside> {
        let network = namespace::open(i32::try_from(pid)?, "net").context("open the network of a process")?;
        let (told, name) = mpsc::channel();
        let (stop, stopped) = mpsc::channel::<()>();
        let image = self.clone();
        // A socket belongs to the network namespace of its maker. The registry must end in there
        // too, because it connects to itself then.
        let thread = std::thread::spawn(move || {
            let enter = || {
                namespace::enter_one(network.as_fd()).context("enter the network of a process")?;
                namespace::loopback_up().context("bring its loopback up")?;
                image.serve()
            };
            match enter() {
                Ok((registry, name)) => {
                    // The caller waits for this message.
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

/// A registry in another network namespace. It ends when dropped.
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
