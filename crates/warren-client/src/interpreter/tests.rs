use std::io::{Read as _, Write as _};
use std::process::{Command, Stdio};
use std::sync::Mutex;

use serde_json::json;

use super::*;

/// Collects output.
#[derive(Default)]
struct Collected(Mutex<(Vec<u8>, Vec<u8>)>);

impl Output for Collected {
    fn stdout(&self, bytes: &[u8]) {
        self.0.lock().expect("lock").0.extend_from_slice(bytes);
    }

    fn stderr(&self, bytes: &[u8]) {
        self.0.lock().expect("lock").1.extend_from_slice(bytes);
    }
}

impl Collected {
    fn text(&self) -> (String, String) {
        let bytes = self.0.lock().expect("lock");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (text(&bytes.0), text(&bytes.1))
    }
}

fn shared(first: Phase) -> (Arc<Shared>, watch::Receiver<Phase>) {
    let (sender, phase) = watch::channel(first);
    (Arc::new(Shared::new(sender)), phase)
}

/// Runs the Python driver here with requests, and returns what the last one brought.
fn python(requests: &[&str]) -> (Phase, Vec<Shown>, (String, String)) {
    let mut command = Command::new("sh");
    command.args(["-c", START_PYTHON, "sh", DRIVER]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut driver = command.spawn().expect("start the driver");
    let (mut stdin, mut stdout) =
        (driver.stdin.take().expect("stdin"), driver.stdout.take().expect("stdout"));
    let (shared, phase) = shared(Phase::Starting);
    let mut decoder = Python::new(shared.clone());
    let mut read = |until: &dyn Fn(&Phase) -> bool| {
        let mut buffer = [0; 4096];
        while !until(&phase.borrow()) {
            let length = stdout.read(&mut buffer).expect("read");
            assert!(length > 0, "the driver ended at {:?}", *phase.borrow());
            decoder.feed(&buffer[..length]).expect("valid");
        }
    };
    read(&|phase| *phase == Phase::Ready);
    let mut output = Arc::new(Collected::default());
    for (id, code) in (1..).zip(requests) {
        output = Arc::new(Collected::default());
        shared.begin(id, output.clone());
        writeln!(stdin, "{}", json!({ "id": id, "code": code })).expect("write");
        read(&|phase| match phase {
            Phase::Done { id: done, .. } => *done == id,
            phase => matches!(phase, Phase::Ended { .. }),
        });
    }
    drop(stdin);
    driver.wait().expect("wait");
    let ended = phase.borrow().clone();
    (ended, shared.take_shown().0, output.text())
}

#[test]
fn python_keeps_its_state_and_returns_the_last_value() {
    let code = "import os, sys\nprint('größe'); os.system('echo sub'); print('bad', file=sys.stderr)\nx * 2";
    let (phase, shown, output) = python(&["x = 20", "x += 1; 5", code]);
    assert_eq!(phase, Phase::Done { id: 3, end: End::Code(None) });
    assert_eq!(shown, [Shown { text: "42".to_owned(), image: None }]);
    let mut lines: Vec<&str> = output.0.lines().collect();
    lines.sort_unstable();
    assert_eq!((lines, output.1.as_str()), (vec!["größe", "sub"], "bad\n"));
}

#[test]
fn python_errors_have_the_code_and_not_the_driver_in_their_traceback() {
    let (phase, ..) = python(&["def f(x):\n    return 1 / x\n", "f(0)"]);
    let Phase::Done { end: End::Code(Some(error)), .. } = phase else { panic!("{phase:?}") };
    assert_eq!((error.name.as_str(), error.value.as_str()), ("ZeroDivisionError", "division by zero"));
    assert!(error.traceback.contains("return 1 / x") && !error.traceback.contains("<string>"), "{error:?}");
    let (phase, ..) = python(&["if"]);
    let Phase::Done { end: End::Code(Some(error)), .. } = phase else { panic!("{phase:?}") };
    assert!(error.name == "SyntaxError" && !error.traceback.contains("ast.py"), "{error:?}");
}

#[test]
fn python_that_ends_its_process_is_reported_with_its_output() {
    let (phase, _, output) = python(&["import os\nprint('last words', flush=True)\nos._exit(7)"]);
    let reason = "it ended with exit code 7".to_owned();
    assert_eq!(phase, Phase::Ended { reason, exit_code: Some(7) });
    assert_eq!(output.0, "last words\n");
}

/// Runs lines in a shell here, and returns the exit code and the output of the last one.
fn shell(program: &str, lines: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(program);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = command.spawn().expect("start a shell");
    let (shared, phase) = shared(Phase::Ready);
    let mut output = Arc::new(Collected::default());
    let mut stdin = process.stdin.take().expect("stdin");
    let (mut stdout, mut stderr) =
        (process.stdout.take().expect("stdout"), process.stderr.take().expect("stderr"));
    let (mut decode_stdout, mut decode_stderr) = Shell::pair(shared.clone());
    stdin.write_all(KEEP_STREAMS).expect("write");
    for (id, line) in (1..).zip(lines) {
        output = Arc::new(Collected::default());
        let mark = shared.begin(id, output.clone());
        stdin.write_all(shell_request(line, &mark).as_bytes()).expect("write");
        // Byte by byte, so that the mark is cut everywhere.
        let mut byte = [0];
        let mut next = |stream: &mut dyn std::io::Read| {
            stream.read_exact(&mut byte).expect("the shell still runs");
            byte
        };
        while !decode_stdout.feed(&next(&mut stdout)) {}
        while !decode_stderr.feed(&next(&mut stderr)) {}
        assert!(matches!(&*phase.borrow(), Phase::Done { id: done, .. } if *done == id));
    }
    drop(stdin);
    process.wait().expect("wait");
    let Phase::Done { end: End::Line(code), .. } = phase.borrow().clone() else { panic!("no end") };
    let (stdout, stderr) = output.text();
    (code, stdout, stderr)
}

#[test]
fn shell_keeps_its_state_and_survives_syntax_errors_and_moved_streams() {
    for program in ["sh", "bash"] {
        let lines =
            ["cd /usr; x='it'\\''s'", "echo \"$x\"; pwd; cat; printf '\\036no mark'; echo bad >&2; (exit 3)"];
        let (code, stdout, stderr) = shell(program, &lines);
        assert_eq!((code, &*stdout, &*stderr), (3, "it's\n/usr\n\u{1e}no mark", "bad\n"), "{program}");
        let (code, _, stderr) = shell(program, &["if"]);
        assert!(code != 0 && !stderr.is_empty(), "{program}: {code} {stderr}");
        let lines = ["if", "f() { echo \"<$1>\"; }", "exec >/dev/null 2>&1", "f lost", "(exit 300)"];
        assert_eq!(shell(program, &lines), (44, String::new(), String::new()), "{program}");
        assert_eq!(shell(program, &["f() { echo \"<$1>\"; }", "f a\nf b"]).1, "<a>\n<b>\n", "{program}");
    }
}

/// Feeds lines of a driver, and returns why they are refused.
fn refused(bytes: &[u8]) -> String {
    let (shared, _phase) = shared(Phase::Ready);
    shared.begin(1, Arc::new(Collected::default()));
    Python::new(shared).feed(bytes).expect_err("refused").to_string()
}

#[test]
fn hostile_lines_are_refused_or_cut() {
    assert!(refused(b"hello\n").contains("not an answer"));
    assert!(refused(b"{\"stdout\": 5}\n").contains("not an answer"));
    assert!(refused(&vec![b'x'; (16 << 20) + 1]).contains("more than"));

    let (shared, phase) = shared(Phase::Ready);
    shared.begin(2, Arc::new(Collected::default()));
    let mut decoder = Python::new(shared.clone());
    let mut feed = |line: serde_json::Value| {
        decoder.feed(format!("{line}\n").as_bytes()).expect("valid");
    };
    // PNG in base64, and a text that says it is one.
    feed(json!({ "result": { "text/plain": "a", "image/png": "iVBORw0KGgo=" } }));
    feed(json!({ "result": { "text/plain": "b", "image/png": "PHN2Zz4=" } }));
    feed(json!({ "result": { "text/plain": "c", "image/jpeg": "no base64" } }));
    feed(json!({ "result": { "text/plain": "d".repeat(2 << 20) } }));
    for _ in 0..100 {
        feed(json!({ "result": { "image/jpeg": "/9j/" } }));
    }
    feed(json!({ "done": 1 }));
    assert_eq!(*phase.borrow(), Phase::Ready, "the end of another call is not the end of this one");
    let (shown, left_out) = shared.take_shown();
    let images: Vec<bool> = shown.iter().map(|shown| shown.image.is_some()).collect();
    assert_eq!(images, [&[true, false, false][..], &[true; 15]].concat());
    assert_eq!(left_out, 1 + 85);
    let long = "é".repeat(100_000);
    feed(json!({ "done": 2, "error": { "name": long, "value": long, "traceback": long } }));
    let Phase::Done { end: End::Code(Some(error)), .. } = phase.borrow().clone() else { panic!("no error") };
    let lengths = [error.name, error.value, error.traceback].map(|text| text.chars().count());
    assert_eq!(lengths, [200, 10_000, 60_000]);
}
