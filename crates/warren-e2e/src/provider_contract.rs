//! The contract of every provider, whatever runs its sandboxes.

use std::time::Duration;

use futures::TryStreamExt as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use warren_providers::{
    CleanUp, Code, Command, FileKind, Provider, ProviderError, Status, Step, TerminalSize, Wanted,
};

use crate::streams::DEADLINE;

fn shell(script: &str) -> Command {
    Command::new("sh", ["-c", script])
}

fn code<T>(result: Result<T, ProviderError>) -> Option<Code> {
    result.err().map(|error| error.code)
}

async fn content(provider: &dyn Provider, id: &str, path: &str) -> Result<Vec<u8>, ProviderError> {
    let file = provider.read(id, path).await?;
    let parts: Vec<Vec<u8>> = file.parts.try_collect().await?;
    let bytes = parts.concat();
    assert_eq!(bytes.len() as u64, file.size);
    Ok(bytes)
}

/// Waits until a sandbox is in a state.
async fn until(provider: &dyn Provider, id: &str, wanted: Option<Status>) {
    let waiting = async {
        while provider.get_by_id(id).await.expect("asked").map(|info| info.status) != wanted {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(DEADLINE, waiting).await.unwrap_or_else(|_| panic!("{id} is never {wanted:?}"));
}

/// Tests a sandbox's whole life. `again` makes a second provider over the same sandboxes, as after
/// a restart. Files are made below `base`.
pub async fn life_of_a_sandbox(
    provider: &dyn Provider,
    again: impl Fn() -> Box<dyn Provider>,
    terminals: bool,
    base: &str,
) {
    let made = format!("{base}/made");
    let (here, file, big_file) = (format!("{made}/here"), format!("{made}/here/f"), format!("{made}/big"));
    let health = provider.health_check().await;
    assert!(health.healthy && health.details["provider"] == provider.name(), "{health:?}");
    let mut events = provider.subscribe();

    // Created, and found by project, by id and in the list.
    assert_eq!(provider.get("web").await.expect("asked"), None);
    let wanted = Wanted {
        project_id: Some("web".to_owned()),
        env: [("GREETING".to_owned(), "it's".to_owned())].into(),
        ..Wanted::default()
    };
    let id = provider.create(wanted.clone()).await.expect("created").id;
    let info = provider.wait_running(&id, DEADLINE).await.expect("it runs");
    assert_eq!((info.status, info.project_id.as_deref()), (Status::Running, Some("web")));
    assert_eq!(code(provider.create(wanted.clone()).await), Some(Code::SandboxAlreadyExists));
    assert_eq!(provider.get("web").await.expect("asked").expect("found").id, id);
    assert_eq!(provider.get("other").await.expect("asked"), None);
    assert_eq!(provider.get_by_id("none").await.expect("asked"), None);
    assert!(provider.list().await.expect("listed").iter().any(|info| info.id == id));
    for step in [Step::Creating, Step::Created, Step::Started] {
        let event = tokio::time::timeout(DEADLINE, events.recv()).await.expect("told in time").expect("told");
        assert_eq!((event.step, event.sandbox_id.as_str()), (step, id.as_str()));
    }

    let ran =
        provider.exec(&id, shell("echo \"$GREETING\"; echo err >&2; exit 7"), DEADLINE).await.expect("ran");
    assert_eq!((ran.exit_code, ran.stdout.as_str(), ran.stderr.as_str()), (7, "it's\n", "err\n"));
    let command = Command {
        directory: Some(here.clone()),
        env: [("A".to_owned(), "b c".to_owned())].into(),
        ..shell("pwd; printf %s \"$A\"")
    };
    assert_eq!(
        code(
            provider
                .exec(&id, Command { directory: Some("/../x".to_owned()), ..shell("true") }, DEADLINE)
                .await
        ),
        Some(Code::ValidationError)
    );
    provider.write(&id, &file, b"0123\xff".to_vec()).await.expect("written");
    let ran = provider.exec(&id, command, DEADLINE).await.expect("ran");
    assert!(ran.exit_code == 0 && ran.stdout.ends_with(&format!("{here}\nb c")), "{ran:?}");
    let ran = provider.exec(&id, shell("sleep 600"), Duration::from_millis(300)).await.expect("ended");
    assert!(ran.timed_out && ran.exit_code == 124, "{ran:?}");
    let ran = provider.exec(&id, shell("head -c 5000000 /dev/zero"), DEADLINE).await.expect("ran");
    assert!(ran.truncated && ran.stdout.len() == warren_providers::MOST_OUTPUT, "{}", ran.stdout.len());
    assert_eq!(code(provider.exec("none", shell("true"), DEADLINE).await), Some(Code::SandboxNotFound));

    // A command with its input, and one that is killed.
    let mut cat =
        provider.exec_stream(&id, Command { stdin: true, ..Command::new("cat", []) }).await.expect("started");
    let mut stdin = cat.stdin.take().expect("an input");
    stdin.write_all(b"there and back").await.expect("fed");
    drop(stdin);
    let mut said = String::new();
    cat.stdout.read_to_string(&mut said).await.expect("read");
    assert_eq!((said.as_str(), cat.wait().await), ("there and back", Ok(0)));
    let mut sleep = provider.exec_stream(&id, shell("echo on; sleep 600")).await.expect("started");
    let mut on = [0; 3];
    sleep.stdout.read_exact(&mut on).await.expect("read");
    sleep.kill();
    let ended = tokio::time::timeout(DEADLINE, sleep.wait()).await.expect("ended in time");
    assert_eq!(code(ended), Some(Code::SandboxExecFailed));
    let size = TerminalSize { width: 91, height: 17 };
    // The size is set after the command's start.
    let sized = "until [ \"$(stty size 2>/dev/null)\" = '17 91' ]; do sleep 0.01; done; stty size";
    let terminal = provider.exec_stream(&id, Command { terminal: Some(size), ..shell(sized) }).await;
    match (terminals, terminal) {
        (true, Ok(mut terminal)) => {
            let mut said = String::new();
            terminal.stdout.read_to_string(&mut said).await.expect("read");
            assert_eq!(said, "17 91\r\n");
        }
        (terminals, terminal) => {
            assert!(!terminals, "no terminal");
            assert_eq!(code(terminal), Some(Code::ProviderUnavailable));
        }
    }

    assert_eq!(content(provider, &id, &file).await.expect("read"), b"0123\xff");
    let big: Vec<u8> = (0..5_000_000_u32).map(|number| (number % 251) as u8).collect();
    provider.write(&id, &big_file, big.clone()).await.expect("written");
    assert!(
        content(provider, &id, &big_file).await.expect("read") == big,
        "more than a part comes back whole"
    );
    let listed = provider.list_files(&id, &made).await.expect("listed");
    let shown: Vec<(&str, &str, FileKind)> =
        listed.iter().map(|entry| (&*entry.name, &*entry.path, entry.kind)).collect();
    assert_eq!(shown, [("big", &*big_file, FileKind::File), ("here", &*here, FileKind::Directory)]);
    for path in ["/../etc/passwd", "/made/../../etc/passwd", "made/big", ""] {
        assert_eq!(code(provider.read(&id, path).await), Some(Code::ValidationError), "{path}");
        assert_eq!(code(provider.write(&id, path, Vec::new()).await), Some(Code::ValidationError), "{path}");
        assert_eq!(code(provider.list_files(&id, path).await), Some(Code::ValidationError), "{path}");
    }
    assert_eq!(code(provider.read(&id, &format!("{made}/none")).await), Some(Code::SandboxFileNotFound));
    assert_eq!(code(provider.read(&id, &here).await), Some(Code::SandboxReadFailed));
    let too_large = vec![0; warren_providers::LARGEST_WRITE + 1];
    assert_eq!(
        code(provider.write(&id, &format!("{made}/huge"), too_large).await),
        Some(Code::SandboxFileTooLarge)
    );

    // Found again by another process.
    let second = again();
    assert_eq!(second.get("web").await.expect("asked").expect("found").id, id);
    assert_eq!(content(second.as_ref(), &id, &file).await.expect("read"), b"0123\xff");

    assert!(provider.explain(&id).await.expect("explained").ready);
    provider.stop(&id).await.expect("stopped");
    until(provider, &id, Some(Status::Stopped)).await;
    assert_eq!(code(provider.exec(&id, shell("true"), DEADLINE).await), Some(Code::SandboxInvalidState));
    assert!(!provider.explain(&id).await.expect("explained").ready);
    provider.start(&id).await.expect("started");
    until(provider, &id, Some(Status::Running)).await;
    assert_eq!(provider.exec(&id, shell("true"), DEADLINE).await.expect("ran").exit_code, 0);
    assert_eq!(provider.cleanup(CleanUp::default()).await.expect("cleaned up"), 0, "it runs");
    provider.stop(&id).await.expect("stopped");
    until(provider, &id, Some(Status::Stopped)).await;
    assert_eq!(provider.cleanup(CleanUp::default()).await.expect("cleaned up"), 1);
    until(provider, &id, None).await;
    assert_eq!(code(provider.remove(&id).await), Some(Code::SandboxNotFound));
    assert_eq!(code(provider.start(&id).await), Some(Code::SandboxNotFound));
    let again = provider.create(wanted).await.expect("the project can have one again");
    provider.remove(&again.id).await.expect("removed");
    until(provider, &again.id, None).await;
}
