//! Attempts with sockets: to the host, to neighbours, into the kernel. They use only the sandbox's
//! own loopback and addresses that this suite listens on.

use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};

use anyhow::{Context as _, Result, ensure};

use super::arena::Arena;

/// Connects to a port of 127.0.0.1 from inside; returns true if that worked.
async fn connects(arena: &Arena, port: u16) -> Result<bool> {
    let program = format!(
        "socket(S, 2, 1, 0) or die $!; exit(connect(S, pack('Sna4x8', 2, {port}, pack('C4', 127, 0, 0, 1))) ? 9 : 0)"
    );
    match arena.perl(&program).await?.code {
        Some(0) => Ok(false),
        Some(9) => Ok(true),
        other => anyhow::bail!("the attempt itself failed: {other:?}"),
    }
}

pub(super) async fn reach_the_hosts_loopback(arena: &Arena) -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    listener.set_nonblocking(true)?;
    ensure!(!connects(arena, listener.local_addr()?.port()).await?, "the host's loopback answers");
    ensure!(listener.accept().is_err(), "somebody came");
    Ok(())
}

pub(super) async fn reach_the_api_server(arena: &Arena) -> Result<()> {
    let kubeconfig = std::fs::read_to_string(arena.data_dir().join("kubeconfig"))?;
    let port = kubeconfig.split_once("https://127.0.0.1:").context("an address")?.1;
    let port: String = port.chars().take_while(char::is_ascii_digit).collect();
    ensure!(!connects(arena, port.parse()?).await?, "the API server answers");
    Ok(())
}

pub(super) async fn reach_the_apis_socket(arena: &Arena) -> Result<()> {
    let path = arena.data_dir().join("api.sock");
    let path = path.display();
    let program =
        format!("socket(S, 1, 1, 0) or die $!; exit(connect(S, pack('Sa108', 1, '{path}')) ? 9 : 0)");
    let ended = arena.perl(&program).await?;
    ensure!(ended.code == Some(0), "{ended:?}");
    let sockets = arena.shell("cat /proc/net/unix").await?;
    ensure!(!sockets.stdout.contains("api.sock") && !sockets.stdout.contains("shim.sock"), "{sockets:?}");
    Ok(())
}

pub(super) async fn reach_an_abstract_socket_of_the_host(arena: &Arena) -> Result<()> {
    let name = format!("warren-escape-{}", std::process::id());
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
    listener.set_nonblocking(true)?;
    let program =
        format!("socket(S, 1, 1, 0) or die $!; exit(connect(S, pack('S', 1) . \"\\0{name}\") ? 9 : 0)");
    let ended = arena.perl(&program).await?;
    ensure!(ended.code == Some(0) && listener.accept().is_err(), "{ended:?}");
    Ok(())
}

pub(super) async fn open_raw_sockets(arena: &Arena) -> Result<()> {
    arena
        .calls_refused(&[
            ("icmp", libc::SYS_socket, "2, 3, 1"),
            ("raw", libc::SYS_socket, "2, 3, 255"),
            ("raw6", libc::SYS_socket, "10, 3, 58"),
            ("packet", libc::SYS_socket, "17, 3, 768"),
            ("packet datagrams", libc::SYS_socket, "17, 2, 768"),
        ])
        .await
}

pub(super) async fn open_sockets_into_the_kernel(arena: &Arena) -> Result<()> {
    arena
        .calls_refused(&[
            ("cryptography", libc::SYS_socket, "38, 5, 0"),
            ("hypervisor", libc::SYS_socket, "40, 1, 0"),
        ])
        .await
}

pub(super) async fn reach_the_metadata_address(arena: &Arena) -> Result<()> {
    // Only the sandbox's own routing table is read, so that no packet can leave: without a route
    // none could.
    let ended =
        arena.shell("cat /proc/net/fib_trie /proc/net/route | grep -e 169.254 -e FEA9 | head -n 1").await?;
    ensure!(ended.stdout.is_empty(), "there is a route of its own to link-local addresses: {ended:?}");
    Ok(())
}

pub(super) async fn configure_the_network(arena: &Arena) -> Result<()> {
    // SIOCSIFFLAGS (down) on the loopback device, in place of the configuration of any other.
    let program = format!(
        "socket(S, 2, 2, 0) or die $!; my $r = pack('a16s', 'lo', 0); exit(syscall({}, fileno(S), 0x8914, $r) == -1 ? 0 : 9)",
        libc::SYS_ioctl
    );
    let ended = arena.perl(&program).await?;
    ensure!(ended.code == Some(0), "{ended:?}");
    let forward = "echo 1 > /proc/sys/net/ipv4/ip_forward";
    if arena.has_of_its_own("a network") {
        arena.shell(forward).await?;
        return Ok(());
    }
    arena.shell_fails(forward).await?;
    Ok(())
}

pub(super) async fn reach_a_neighbours_shared_memory(arena: &Arena) -> Result<()> {
    let (key, create) = (0x5eed, 0o1666);
    let make = format!("perl -e 'exit(syscall({}, {key}, 4096, {create}) == -1)'", libc::SYS_shmget);
    let ended = arena.neighbour(&make).await?;
    ensure!(ended.code == Some(0), "{ended:?}");
    let find = format!("exit(syscall({}, {key}, 4096, 0) == -1 ? 0 : 9)", libc::SYS_shmget);
    let ended = arena.perl(&find).await?;
    ensure!(ended.code == Some(0), "{ended:?}");
    let ended = arena.neighbour("echo of-the-neighbour > /dev/shm/mine; hostname").await?;
    let seen = arena.shell("ls /dev/shm; hostname").await?;
    ensure!(!seen.stdout.contains("mine") && seen.stdout != ended.stdout, "{seen:?}");
    Ok(())
}
