//! Many writers and viewers while the process that hosts the store is killed again and again: each viewer sees exactly
//! what was acknowledged, in order, none twice.
//!
//! `WARREN_SESSION_CRASH_ROUNDS` says how often it is killed.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _};
use warren_sessions::{Kind, Limits, NewEvent, NewSession, SessionError, Source, Store, Turn};

const WRITERS: u64 = 8;
const VIEWERS: usize = 4;
const HOST: &str = "WARREN_SESSION_HOST";

/// The process that is killed: serves the store on a socket. Does nothing unless a test starts it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn host_process_of_the_crash_test() {
    let Some(directory) = std::env::var_os(HOST).map(PathBuf::from) else { return };
    let store = Store::open(&directory.join("sessions.db"), Limits::default()).expect("open");
    match store.create("s", NewSession::default(), Timestamp::now()).await {
        Ok(_) | Err(SessionError::Exists(_)) => {}
        Err(error) => panic!("{error}"),
    }
    let socket = directory.join("socket");
    let _ = std::fs::remove_file(&socket);
    let listener = tokio::net::UnixListener::bind(&socket).expect("listen");
    while let Ok((stream, _)) = listener.accept().await {
        let store = store.clone();
        tokio::spawn(async move {
            let (reader, mut writer) = stream.into_split();
            let mut lines = tokio::io::BufReader::new(reader).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                let words: Vec<&str> = line.split(' ').collect();
                match words[..] {
                    ["append", writer_name, number] => {
                        let turn = Turn {
                            writer: writer_name.to_owned(),
                            number: number.parse().expect("a number"),
                        };
                        let data = format!("{writer_name}-{number}").into_bytes();
                        let event = NewEvent { kind: Kind::TerminalOutput, source: Source::Agent, data };
                        let offset = store
                            .append("s", vec![event], Some(turn), Timestamp::now())
                            .await
                            .expect("append");
                        let _ = writer.write_all(format!("{offset}\n").as_bytes()).await;
                    }
                    ["tail", from] => {
                        let mut tail = store.tail("s", from.parse().expect("a number")).await.expect("tail");
                        while let Ok(events) = tail.next().await {
                            for event in events {
                                let data = String::from_utf8_lossy(&event.data);
                                let line = format!("{} {data}\n", event.offset);
                                if writer.write_all(line.as_bytes()).await.is_err() {
                                    return;
                                }
                            }
                        }
                    }
                    _ => panic!("{line}"),
                }
            }
        });
    }
}

fn host(directory: &Path) -> Child {
    let own = std::env::current_exe().expect("this test's own path");
    let mut command = Command::new(own);
    command.args(["--exact", "host_process_of_the_crash_test"]).env(HOST, directory);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::inherit())
        .spawn()
        .expect("start the host")
}

/// Lets others run before a condition is looked at again.
#[expect(clippy::disallowed_methods, reason = "the loops that call it wait for a condition")]
fn pause() {
    std::thread::sleep(Duration::from_millis(2));
}

/// Sends a request until a host takes it.
fn ask(directory: &Path, request: &str) -> BufReader<UnixStream> {
    loop {
        if let Ok(mut stream) = UnixStream::connect(directory.join("socket"))
            && stream.write_all(request.as_bytes()).is_ok()
        {
            return BufReader::new(stream);
        }
        pause();
    }
}

/// Reads a whole line; none if the host was killed first.
fn line(reader: &mut BufReader<UnixStream>) -> Option<String> {
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    line.strip_suffix('\n').map(str::to_owned)
}

#[test]
fn viewers_see_what_was_acknowledged_once_and_in_order_over_kills() {
    let rounds: u32 =
        std::env::var("WARREN_SESSION_CRASH_ROUNDS").map_or(5, |rounds| rounds.parse().expect("a number"));
    let directory = tempfile::tempdir().expect("make a directory");
    let path = directory.path();
    let stop = Arc::new(AtomicBool::new(false));
    let acknowledged = Arc::new(AtomicU64::new(0));
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let (path, stop, acknowledged) = (path.to_owned(), stop.clone(), acknowledged.clone());
            std::thread::spawn(move || {
                let mut offsets = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    let number = offsets.len() + 1;
                    let request = format!("append w{writer} {number}\n");
                    // Without an answer it may be stored or not, so it is sent again.
                    let offset = std::iter::repeat_with(|| line(&mut ask(&path, &request))).flatten().next();
                    let offset = offset.expect("repeated until there is one");
                    offsets.push(offset.parse::<u64>().expect("an offset"));
                    acknowledged.fetch_add(1, Ordering::Relaxed);
                }
                offsets
            })
        })
        .collect();
    // Ends when it has seen as many as were acknowledged in the end.
    let total = Arc::new(AtomicU64::new(u64::MAX));
    let viewers: Vec<_> = (0..VIEWERS)
        .map(|_| {
            let (path, total) = (path.to_owned(), total.clone());
            std::thread::spawn(move || {
                let mut seen: Vec<String> = Vec::new();
                while (seen.len() as u64) < total.load(Ordering::Relaxed) {
                    let mut reader = ask(&path, &format!("tail {}\n", seen.len()));
                    reader.get_ref().set_read_timeout(Some(Duration::from_millis(200))).expect("set");
                    while let Some(line) = line(&mut reader) {
                        let (offset, data) = line.split_once(' ').expect("offset and data");
                        assert_eq!(offset.parse(), Ok(seen.len() as u64), "offsets are consecutive");
                        seen.push(data.to_owned());
                    }
                }
                seen
            })
        })
        .collect();

    for round in 0..rounds {
        let before = acknowledged.load(Ordering::Relaxed);
        let mut child = host(path);
        while acknowledged.load(Ordering::Relaxed) < before + 20 + u64::from(round % 7) * 13 {
            pause();
            assert_eq!(child.try_wait().expect("look"), None, "the host ended by itself");
        }
        child.kill().expect("kill -9");
        child.wait().expect("wait");
    }
    let mut last = host(path);
    stop.store(true, Ordering::Relaxed);
    let mut stored: BTreeMap<u64, String> = BTreeMap::new();
    for (writer, thread) in writers.into_iter().enumerate() {
        let offsets = thread.join().expect("the writer ends");
        assert!(offsets.is_sorted(), "a writer's events are in its order");
        for (number, offset) in (1..).zip(offsets) {
            let twice = stored.insert(offset, format!("w{writer}-{number}"));
            assert_eq!(twice, None, "two events have offset {offset}");
        }
    }
    total.store(stored.len() as u64, Ordering::Relaxed);
    let expected: Vec<String> = stored.into_values().collect();
    for viewer in viewers {
        assert!(viewer.join().expect("the viewer ends") == expected, "a viewer saw something else");
    }
    last.kill().expect("kill");
    last.wait().expect("wait");
}
