//! Tests pulls from a registry on loopback, without and with faults of real registries.

use std::path::Path;

use serde_json::json;
use tempfile::TempDir;
use warren_testkit::images::{Layer, TestImage, digest};
use warren_testkit::registry::{Access, TestRegistry};

use super::*;
use crate::worker::chain;

struct Place {
    directory: TempDir,
    store: Arc<Store>,
    puller: Puller,
}

impl Place {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = Arc::new(Store::open(directory.path()).unwrap());
        Self { directory, store, puller: Puller::new(RegistryConfig::default()) }
    }

    async fn pull_as(&self, name: &str, credentials: Vec<Credential>) -> Result<Digest, PullError> {
        let reference: Reference = name.parse().unwrap();
        let progress = Progress::default();
        let pulled = self.puller.pull(&self.store, &reference, credentials, &progress).await?;
        let [done, total] = [&progress.done, &progress.total].map(|count| count.load(Ordering::Relaxed));
        assert_eq!(done, total, "all that was to come is said to have come");
        pulled.name(&self.store, &reference)?;
        Ok(self.store.find(&reference)?.unwrap().digest)
    }

    async fn pull(&self, name: &str) -> Result<Digest, PullError> {
        self.pull_as(name, Vec::new()).await
    }

    /// Returns the error of a pull; checks that nothing unfinished is left of it.
    async fn failure(&self, name: &str) -> String {
        let problem = self.pull(name).await.unwrap_err();
        assert_eq!(count(&self.directory.path().join("unfinished")), 0);
        assert!(self.store.find(&name.parse().unwrap()).unwrap().is_none());
        chain(&problem)
    }

    fn layers(&self) -> usize {
        count(&self.directory.path().join("layers"))
    }
}

fn count(directory: &Path) -> usize {
    std::fs::read_dir(directory).unwrap().count()
}

/// Returns incompressible content, so that a layer has this length.
fn noise(length: usize, seed: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    std::iter::repeat_with(|| random.u8(..)).take(length).collect()
}

fn image(seeds: &[u64]) -> TestImage {
    let layer = |seed: &u64| Layer::new().own_file(&format!("file-{seed}"), &noise(100_000, *seed));
    TestImage::new(json!({"Cmd": ["true"]}), seeds.iter().map(layer).collect())
}

fn password(user: &str, password: &str) -> Credential {
    Credential::Password { user: user.to_owned(), password: password.to_owned() }
}

fn blob_requests(registry: &TestRegistry, blob: &[u8]) -> Vec<String> {
    let wanted = digest(blob);
    registry.requests().into_iter().filter(|request| request.contains(&wanted)).collect()
}

#[tokio::test]
async fn an_image_comes_whole_and_the_next_one_brings_only_what_is_new() {
    let (registry, place) = (TestRegistry::start().unwrap(), Place::new());
    let (first, second) = (image(&[1, 2, 3, 4]), image(&[1, 2, 5]));
    registry.put("some/tool", "1", &first);
    registry.put("some/tool", "2", &second);
    let found = place.pull(&registry.image("some/tool", "1")).await.unwrap();
    assert_eq!(found.to_string(), first.digest());
    assert_eq!(place.layers(), 4);
    place.pull(&registry.image("some/tool", "2")).await.unwrap();
    assert_eq!(place.layers(), 5);
    assert_eq!(blob_requests(&registry, &second.layers[0]).len(), 1, "{:?}", registry.requests());
    // By its digest it is the same.
    assert_eq!(place.pull(&registry.image("some/tool", &first.digest())).await.unwrap(), found);
}

#[tokio::test]
async fn twenty_pulls_at_once_fetch_a_layer_once() {
    let (registry, place) = (TestRegistry::start().unwrap(), Place::new());
    let image = image(&[1, 2]);
    registry.put("tool", "1", &image);
    let name = registry.image("tool", "1");
    let pulls = futures::future::join_all((0..20).map(|_| place.pull(&name))).await;
    assert!(pulls.iter().all(Result::is_ok), "{pulls:?}");
    assert_eq!(blob_requests(&registry, &image.layers[0]).len(), 1);
}

#[tokio::test]
async fn a_blob_that_breaks_off_is_taken_up_where_it_ended() {
    let (registry, place) = (TestRegistry::start().unwrap(), Place::new());
    let image = image(&[1]);
    registry.put("tool", "1", &image);
    registry.break_off_at(10_000);
    place.pull(&registry.image("tool", "1")).await.unwrap();
    let requests = blob_requests(&registry, &image.layers[0]);
    let endings: Vec<&str> = requests.iter().filter_map(|request| request.rsplit(' ').next()).collect();
    assert_eq!(endings, ["200", "206"]);
}

#[tokio::test]
async fn who_asks_is_said_in_the_way_that_the_registry_wants() {
    let (registry, place) = (TestRegistry::start().unwrap(), Place::new());
    registry.put("tool", "1", &image(&[1]));
    // Another server has the blobs, and must not learn the credentials.
    registry.redirect_blobs();
    let name = registry.image("tool", "1");
    let me = || ("me".to_owned(), "secret".to_owned());
    for access in [Access::Basic(me().0, me().1), Access::Token(Some(me()))] {
        registry.set_access(access.clone());
        let place = Place::new();
        let refused = place.failure(&name).await;
        assert!(refused.contains("401"), "{access:?}: {refused}");
        // The first is outdated.
        let credentials = vec![password("me", "old"), password("me", "secret")];
        place.pull_as(&name, credentials).await.unwrap();
    }
    registry.set_access(Access::Token(None));
    place.pull_as(&name, vec![password("me", "old")]).await.unwrap();
}

#[tokio::test]
async fn content_that_is_not_what_it_is_called_is_refused() {
    let (registry, place) = (TestRegistry::start().unwrap(), Place::new());
    let (good, other) = (image(&[1]), image(&[2]));
    for (repository, blob, content) in [
        ("layer", &good.layers[0], &vec![b'x'; good.layers[0].len()][..]),
        ("short", &good.layers[0], b"x"),
        ("long", &good.layers[0], &[&good.layers[0][..], b"more"].concat()),
        ("config", &good.config, &other.config),
    ] {
        registry.put(repository, "1", &good);
        registry.put_blob(&digest(blob), content);
        let why = place.failure(&registry.image(repository, "1")).await;
        assert!(why.contains("sha256:") || why.contains("another length"), "{repository}: {why}");
        registry.put_blob(&digest(blob), blob);
    }
    assert_eq!(place.layers(), 0);
    let promised = digest(b"something else");
    registry.put_manifest("tool", &promised, &good.manifest);
    let why = place.failure(&registry.image("tool", &promised)).await;
    assert!(why.contains(&good.digest()) && why.contains("not what it was asked for"), "{why}");
    // It recovers when the registry does.
    registry.put("layer", "1", &good);
    place.pull(&registry.image("layer", "1")).await.unwrap();
}

#[tokio::test]
async fn an_index_leads_to_the_manifest_for_this_machine() {
    let (registry, place) = (TestRegistry::start().unwrap(), Place::new());
    let image = image(&[1]);
    registry.put("tool", "own", &image);
    let here = warren_image::manifest::Platform::here();
    let entry = |architecture: &str, digest: String, size: usize| json!({"digest": digest, "size": size, "platform": {"os": "linux", "architecture": architecture}});
    let foreign = entry("s390x", digest(b"other"), 5);
    let own = entry(&here.architecture, image.digest(), image.manifest.len());
    registry.put_manifest("tool", "all", json!({"manifests": [foreign.clone(), own]}).to_string().as_bytes());
    registry.put_manifest("tool", "foreign", json!({"manifests": [foreign]}).to_string().as_bytes());
    let found = place.pull(&registry.image("tool", "all")).await.unwrap();
    assert_eq!(found.to_string(), image.digest());
    let why = place.failure(&registry.image("tool", "foreign")).await;
    assert!(why.ends_with("it is for: linux/s390x"), "{why}");
}

/// Serves TLS in front of a registry, with a certificate for `localhost` from an authority of its
/// own, which is returned.
async fn tls_front(registry: &TestRegistry) -> (u16, String) {
    let key = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let certificate = key.cert.pem();
    let private = rustls::pki_types::PrivateKeyDer::try_from(key.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![key.cert.der().clone()], private)
        .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = tokio::net::TcpListener::bind("localhost:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let behind = registry.name();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, behind) = (acceptor.clone(), behind.clone());
            tokio::spawn(async move {
                // A client that does not trust us disconnects at once.
                let Ok(mut near) = acceptor.accept(stream).await else { return };
                let mut far = tokio::net::TcpStream::connect(&behind).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
            });
        }
    });
    (port, certificate)
}

#[tokio::test]
async fn certificates_are_checked_against_the_registrys_own_authorities() {
    let registry = TestRegistry::start().unwrap();
    registry.put("tool", "1", &image(&[1]));
    let (port, certificate) = tls_front(&registry).await;
    registry.redirect_blobs_to(&format!("https://localhost:{port}"));
    let why = Place::new().failure(&registry.image("tool", "1")).await;
    assert!(why.contains("cannot be believed") && why.contains("certificate"), "{why}");

    let certificates = tempfile::tempdir().unwrap();
    let own = certificates.path().join(registry.name());
    std::fs::create_dir(&own).unwrap();
    std::fs::write(own.join("ca.crt"), certificate).unwrap();
    let mut place = Place::new();
    place.puller = Puller::new(RegistryConfig {
        certificate_directories: vec![certificates.path().to_owned()],
        ..RegistryConfig::default()
    });
    place.pull(&registry.image("tool", "1")).await.unwrap();
}

#[tokio::test]
async fn what_is_not_there_is_said_to_be_so() {
    let (registry, place) = (TestRegistry::start().unwrap(), Place::new());
    let why = place.failure(&registry.image("tool", "1")).await;
    assert!(why.contains("404") && why.contains("MANIFEST_UNKNOWN"), "{why}");
    registry.put_manifest("tool", "1", b"<html>");
    let why = place.failure(&registry.image("tool", "1")).await;
    assert!(why.contains("not of the expected form"), "{why}");
    let name = registry.image("tool", "1");
    drop(registry);
    let why = place.failure(&name).await;
    assert!(why.contains("cannot be reached"), "{why}");
}
