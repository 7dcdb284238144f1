//! nginx as a proxy on this machine, and the servers in a sandbox.

use std::fs;
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client};
use serde_json::json;
use tempfile::TempDir;
use tokio::net::TcpStream;
use warren_client::exec::{Exec, ExecRequest, Streams};
use warren_client::home::DataDir;
use warren_client::sandbox;

use super::load::loopback;
use crate::home::Home;

/// The port of nginx in the sandbox.
pub const PORT: u16 = 8000;
/// The port of the server that accepts WebSockets in the sandbox.
pub const WEBSOCKET_PORT: u16 = 8001;
const NAMESPACE: &str = "default";
/// Everything here takes a second at most.
const PATIENCE: Duration = Duration::from_secs(60);

/// Answers each request for an upgrade, and keeps the connection.
const WEBSOCKETS: &str = r#"
import asyncio
async def accept(reader, writer):
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                 b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n")
    await reader.read()
async def main():
    server = await asyncio.start_server(accept, "0.0.0.0", 8001, backlog=1024)
    await server.serve_forever()
asyncio.run(main())
"#;

/// A sandbox with nginx in it, which answers each request with two bytes.
pub struct Sandboxed {
    client: Client,
    pub name: String,
    pub address: Ipv4Addr,
}

impl Sandboxed {
    /// Creates the sandbox, and starts nginx in it.
    pub async fn start(home: &Home, name: &str) -> anyhow::Result<Sandboxed> {
        let client = warren_client::connect::local(&DataDir::open(home.directory())?).await?;
        let wanted = json!({
            "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "metadata": {"name": name},
            "spec": {"podTemplate": {"spec": {
                "containers": [{"name": "main", "image": "warren.dev/host"}],
                "terminationGracePeriodSeconds": 0,
            }}},
        });
        let created = sandbox::create(&client, NAMESPACE, &serde_json::from_value(wanted)?).await?;
        let ready = sandbox::wait_ready(&client, created, PATIENCE).await?;
        let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
        let pod = pods.get(&sandbox::pod_name(&ready)).await?;
        let address = pod.status.and_then(|status| status.pod_ip).context("the pod has no address")?;
        let sandboxed = Sandboxed { client, name: name.to_owned(), address: address.parse()? };
        let configuration = format!(
            "events {{ worker_connections 4096; }} pid /tmp/nginx.pid; error_log /dev/null; \
             http {{ access_log off; keepalive_requests 100000000; \
             client_body_temp_path /tmp/n1; proxy_temp_path /tmp/n2; fastcgi_temp_path /tmp/n3; \
             uwsgi_temp_path /tmp/n4; scgi_temp_path /tmp/n5; \
             server {{ listen {PORT} backlog=1024; location / {{ return 200 ok; }} }} }}"
        );
        sandboxed
            .shell(&format!("echo '{configuration}' > /tmp/nginx.conf && nginx -c /tmp/nginx.conf"))
            .await?;
        reachable(SocketAddrV4::new(sandboxed.address, PORT)).await?;
        Ok(sandboxed)
    }

    /// Starts a server that accepts WebSockets.
    pub async fn accept_websockets(&self) -> anyhow::Result<()> {
        let script = WEBSOCKETS.trim();
        self.shell(&format!(
            "ulimit -n 4096; cat > /tmp/ws.py <<'END'\n{script}\nEND\n\
             setsid python3 /tmp/ws.py < /dev/null > /dev/null 2>&1 &"
        ))
        .await?;
        reachable(SocketAddrV4::new(self.address, WEBSOCKET_PORT)).await
    }

    async fn shell(&self, line: &str) -> anyhow::Result<()> {
        let request = ExecRequest {
            namespace: NAMESPACE.to_owned(),
            pod: self.name.clone(),
            container: None,
            command: ["sh", "-c", line].map(str::to_owned).to_vec(),
            stdin: false,
            tty: false,
        };
        let exec = Exec::start(&self.client, request).await?;
        let (_, resize) = tokio::sync::mpsc::channel(1);
        let mut stderr = Vec::new();
        let streams =
            Streams { stdin: tokio::io::empty(), stdout: tokio::io::sink(), stderr: &mut stderr, resize };
        let code = exec.run(streams).await?;
        ensure!(code == 0, "`{line}` ended with {code}: {}", String::from_utf8_lossy(&stderr));
        Ok(())
    }
}

/// An nginx on loopback that passes everything on to one address; stopped when dropped.
pub struct Nginx {
    process: Child,
    address: SocketAddrV4,
    _directory: TempDir,
}

impl Nginx {
    /// Starts it, with as many workers as there are processors and connections that stay open.
    pub async fn start(upstream: Ipv4Addr, port: u16) -> anyhow::Result<Nginx> {
        let directory = tempfile::tempdir()?;
        let own = TcpListener::bind(loopback(0))?.local_addr()?.port();
        let place = directory.path().display();
        let configuration = format!(
            "worker_processes auto; daemon off; pid {place}/pid; error_log {place}/error.log; \
             events {{ worker_connections 4096; }} \
             http {{ access_log off; keepalive_requests 100000000; client_max_body_size 0; \
             client_body_temp_path {place}/n1; proxy_temp_path {place}/n2; \
             fastcgi_temp_path {place}/n3; uwsgi_temp_path {place}/n4; scgi_temp_path {place}/n5; \
             upstream sandbox {{ server {upstream}:{port}; keepalive 64; keepalive_requests 100000000; }} \
             server {{ listen 127.0.0.1:{own}; location / {{ proxy_pass http://sandbox; \
             proxy_http_version 1.1; proxy_set_header Connection \"\"; proxy_request_buffering off; \
             proxy_max_temp_file_size 0; }} }} }}"
        );
        let file = directory.path().join("nginx.conf");
        fs::write(&file, configuration)?;
        let process = Command::new("nginx")
            .arg("-c")
            .arg(&file)
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("start nginx; on Debian it is in the package `nginx-light`")?;
        let nginx = Nginx { process, address: loopback(own), _directory: directory };
        reachable(nginx.address).await?;
        Ok(nginx)
    }

    /// Returns its address.
    pub fn address(&self) -> SocketAddrV4 {
        self.address
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        if let Some(pid) = i32::try_from(self.process.id()).ok().and_then(rustix::process::Pid::from_raw) {
            // SIGTERM: the first process ends its workers.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        let _ = self.process.wait();
    }
}

/// Raises the limit of open files of this process.
pub fn allow_open_files(wanted: u64) -> anyhow::Result<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_some_and(|current| current < wanted) {
        let maximum = limit.maximum.map(|maximum| maximum.max(wanted));
        setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum })
            .context("allow more open files")?;
    }
    Ok(())
}

/// Waits until something listens.
async fn reachable(address: SocketAddrV4) -> anyhow::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while TcpStream::connect(address).await.is_err() {
        if Instant::now() > deadline {
            bail!("nothing listens on {address}");
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}
