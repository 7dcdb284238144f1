//! Tests the contract of providers for each provider.

use futures::FutureExt as _;
use futures::future::BoxFuture;
use warren_client::home::DataDir;
use warren_client::kube::Client;
use warren_e2e::local_home::LocalHome;
use warren_e2e::provider_contract::life_of_a_sandbox;
use warren_providers::{Connect, LocalProvider, Options, Provider, WarrenProvider};

struct Home(DataDir);

impl Connect for Home {
    fn connect(&self, _: bool) -> BoxFuture<'_, Result<Client, String>> {
        async { warren_client::connect::local(&self.0).await.map_err(|error| error.to_string()) }.boxed()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn life_of_a_sandbox_in_the_local_home() {
    let Some(home) = LocalHome::new() else { return };
    home.up();
    let data_dir = DataDir::open(home.path()).expect("open the data directory");
    let make = || -> Box<dyn Provider> {
        let options = Options { local_home: true, most_sandboxes: 8, ..Options::default() };
        Box::new(WarrenProvider::new(options, Home(data_dir.clone())))
    };
    life_of_a_sandbox(make().as_ref(), make, true, "").await;
    home.assert_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn life_of_a_sandbox_that_is_a_directory() {
    let directory = tempfile::tempdir().expect("make a directory");
    let make =
        || -> Box<dyn Provider> { Box::new(LocalProvider::open(directory.path(), true).expect("opened")) };
    life_of_a_sandbox(make().as_ref(), make, false, "").await;
    assert_eq!(std::fs::read_dir(directory.path()).expect("listed").count(), 0, "nothing is left");
}
