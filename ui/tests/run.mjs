// The page in a real browser, against a real `warren serve` on a real home. `crates/warren-e2e/tests/ui.rs` runs it:
//
//   WARREN_UI_LINK=http://127.0.0.1:PORT/#key=KEY node run.mjs
//
// Asks to restart the service by printing `restart`, and for an event of a refused host by `refuse SANDBOX HOST`. Goes on when
// a line arrives on standard input.

import assert from "node:assert/strict";
import { createInterface } from "node:readline";
import { checkAccessibility, checkWidth, DEADLINE, launch, openWindow, typeLine, waitForOutput } from "./browser.mjs";

const link = new URL(process.env.WARREN_UI_LINK ?? "");
const base = link.origin;
const key = new URLSearchParams(link.hash.slice(1)).get("key") ?? "";
const input = createInterface({ input: process.stdin });

/** HTML that would call `hit` if it were ever taken for HTML. */
const HOSTILE = "<img src=x onerror=hit()>";

const browser = await launch();
const first = await openWindow(browser);
const { page, problems } = first;
const seen = { sandbox: "", session: "" };

const steps = [
  ["the login refuses a wrong key and takes the right one", login],
  ["a link logs in and leaves no key in the address", loginByLink],
  ["an empty home says the next step", emptyHome],
  ["a sandbox is created", createSandbox],
  ["a terminal runs commands", typeInTerminal],
  ["a reload shows it all again", reload],
  ["a second viewer sees the same, live", secondViewer],
  ["a second terminal is another one", secondTerminal],
  ["a file is uploaded, edited and saved", editFile],
  ["hostile output, names and titles do nothing", hostile],
  ["other sites and inline scripts are refused", foreign],
  ["a session replays", replay],
  ["a refused host appears, is allowed by one click, and is refused again", allowHost],
  ["names of refused hosts do nothing", hostileHosts],
  ["a task is submitted, ends, and shows its result as text", submitTask],
  ["a running task is cancelled and deleted after questions that name it", cancelTask],
  ["settings are kept", settings],
  ["commands are found by the keyboard", palette],
  ["every page is accessible and fits a phone", everyPage],
  ["the page goes on after the service was restarted", restart],
  ["a sandbox is stopped and started", stopAndStart],
  ["a sandbox is deleted after a question that names it", deleteSandbox],
];

let failed = false;
for (const [name, step] of steps) {
  const started = performance.now();
  try {
    await step();
    assert.deepEqual(problems.splice(0), []);
    console.log(`ok ${name} (${Math.round(performance.now() - started)} ms)`);
  } catch (error) {
    failed = true;
    console.log(`FAILED ${name}: ${error.stack}`);
    console.log(`${page.url()}\n${(await page.locator("body").innerText().catch(() => "")).slice(0, 2000)}`);
    if (process.env.WARREN_UI_SHOT) await page.screenshot({ path: process.env.WARREN_UI_SHOT });
    break;
  }
}
await browser.close();
input.close();
process.exit(failed ? 1 : 0);

/** Calls the API as the page does. */
async function call(method, path, data, headers = {}) {
  const response = await first.context.request.fetch(base + path, { method, data, headers: { origin: base, ...headers } });
  return { status: response.status(), body: await response.json().catch(() => null), headers: response.headers() };
}

async function login() {
  await page.goto(base);
  await page.getByLabel("Key").fill("wrong");
  await page.getByRole("button", { name: "Log in" }).click();
  await page.getByText("You were not logged in").waitFor();
  await checkAccessibility(page, "login");
  await page.getByLabel("Key").fill(key);
  await page.getByRole("button", { name: "Log in" }).click();
  await page.getByRole("heading", { name: "Sandboxes" }).waitFor();
  await page.getByRole("button", { name: "Log out" }).click();
  await page.getByLabel("Key").waitFor();
}

async function loginByLink() {
  await page.goto(link.href);
  await page.reload();
  await page.getByRole("heading", { name: "Sandboxes" }).waitFor();
  assert.equal(page.url(), `${base}/`);
  const cookies = await first.context.cookies();
  assert.equal(cookies.find((cookie) => cookie.name === "warren_session")?.httpOnly, true);
}

async function emptyHome() {
  await page.getByText("No sandboxes yet").waitFor();
  await page.getByTestId("connection").getByText("Live").waitFor();
  await checkAccessibility(page, "empty home");
}

async function createSandbox() {
  await page.getByRole("link", { name: "Create a sandbox" }).first().click();
  await page.getByLabel("Project").fill("browser-test");
  await page.getByRole("button", { name: "Create the sandbox" }).click();
  await page.waitForURL(/\/sandboxes\/[^/]+\/terminal/);
  seen.sandbox = new URL(page.url()).pathname.split("/")[2] ?? "";
  await page.getByRole("button", { name: "Open a terminal" }).waitFor();
}

async function typeInTerminal() {
  await page.getByRole("button", { name: "Open a terminal" }).click();
  await page.locator("[data-testid=terminal][data-ready=true]").waitFor();
  seen.session = new URL(page.url()).searchParams.get("terminal") ?? "";
  assert.notEqual(seen.session, "");
  await typeLine(page, "echo made-$((6*7))");
  await waitForOutput(page, "made-42");
  await typeLine(page, "stty size | sed 's/^/size /; s/$/ end/'");
  const columns = await page.evaluate(() => {
    const rows = document.querySelector(".xterm-rows");
    return rows === null ? 0 : rows.children.length;
  });
  await waitForOutput(page, `size ${columns} `);
}

async function reload() {
  await page.reload();
  await waitForOutput(page, "made-42");
  // What was drawn again has typed nothing.
  await typeLine(page, "echo after-$((6*8))");
  await waitForOutput(page, "after-48");
}

async function secondViewer() {
  const second = await openWindow(browser);
  await second.page.goto(link.href);
  await second.page.getByRole("heading", { name: "Sandboxes" }).waitFor();
  await second.page.goto(`${base}/sessions/${seen.session}`);
  await waitForOutput(second.page, "made-42");
  await typeLine(page, "echo both-$((6*9))");
  await waitForOutput(page, "both-54");
  await waitForOutput(second.page, "both-54");
  await second.page.getByRole("button", { name: "Type here" }).click();
  await typeLine(second.page, "echo back-$((6*10))");
  await waitForOutput(second.page, "back-60");
  await waitForOutput(page, "back-60");
  assert.deepEqual(second.problems, []);
  await second.context.close();
}

async function secondTerminal() {
  await page.getByRole("button", { name: "New terminal" }).click();
  await page.waitForFunction((old) => !location.search.includes(old), seen.session);
  const tabs = page.getByRole("group", { name: "Terminals" }).getByRole("button");
  assert.equal(await tabs.count(), 2);
  await typeLine(page, "echo other-$((6*11))");
  await waitForOutput(page, "other-66");
  await tabs.first().click();
  await waitForOutput(page, "back-60");
}

async function editFile() {
  await page.getByRole("link", { name: "Files" }).click();
  await page.getByTestId("tree").getByRole("button", { name: "tmp", exact: true }).click();
  const content = { name: "upload.txt", mimeType: "text/plain", buffer: Buffer.from("first line\n") };
  await page.getByTestId("upload").setInputFiles(content);
  await page.getByTestId("tree").getByRole("button", { name: /upload\.txt/ }).click();
  const editor = page.getByRole("textbox", { name: "Content of /tmp/upload.txt" });
  await editor.waitFor();
  assert.equal(await editor.inputValue(), "first line\n");
  await editor.fill("first line\nsecond line\n");
  await page.keyboard.press("Control+s");
  await page.getByText("/tmp/upload.txt was saved.").waitFor();
  const ran = await call("POST", `/api/sandboxes/${seen.sandbox}/exec`, { cmd: "cat", args: ["/tmp/upload.txt"] });
  assert.equal(ran.body?.data?.stdout, "first line\nsecond line\n");
  await checkAccessibility(page, "files");
}

async function hostile() {
  const name = `/tmp/${HOSTILE.replace("/", "")}`;
  const written = await call("PUT", `/api/sandboxes/${seen.sandbox}/files/content?path=${encodeURIComponent(name)}`, "x");
  assert.equal(written.status, 200);
  await page.reload();
  await page.getByTestId("tree").getByRole("button", { name: "tmp", exact: true }).click();
  await page.getByTestId("tree").getByText(HOSTILE).click();
  await page.getByRole("textbox", { name: `Content of ${name}` }).waitFor();
  // What is served as a file is never shown as a page.
  const file = await call("GET", `/api/sandboxes/${seen.sandbox}/files/content?path=${encodeURIComponent(name)}`);
  assert.match(file.headers["content-disposition"] ?? "", /^attachment/);
  assert.equal(file.headers["x-content-type-options"], "nosniff");

  const titled = await call("POST", `/api/sandboxes/${seen.sandbox}/terminals`, { columns: 80, rows: 24, title: HOSTILE });
  assert.equal(titled.status, 201);
  await page.goto(`${base}/sandboxes/${seen.sandbox}/terminal?terminal=${titled.body.data.id}`);
  const printed = [
    `printf '${HOSTILE}<script>hit()</script>\\n'`,
    `printf '\\033]0;${HOSTILE}\\007\\033]8;;javascript:hit()\\033\\\\link\\033]8;;\\033\\\\\\n'`,
    // A terminal that answered this would type the answer into the shell.
    "printf '\\033[6n\\033[c\\033[>c\\033P$q\"p\\033\\\\'; echo shown-$((6*12))",
  ];
  for (const line of printed) await typeLine(page, line);
  await waitForOutput(page, "shown-72");
  await page.locator(".xterm-rows").getByText("link", { exact: true }).last().click({ force: true });
  await page.getByRole("group", { name: "Terminals" }).getByText(HOSTILE).waitFor();
  const typed = await inputsOf(titled.body.data.id);
  await page.reload();
  await waitForOutput(page, "shown-72");
  await page.locator("[data-testid=terminal]:visible").click();
  await page.goto(`${base}/sessions/${titled.body.data.id}?view=replay`);
  await page.getByRole("heading", { name: HOSTILE }).waitFor();
  await page.getByTestId("timeline").press("End");
  await waitForOutput(page, "shown-72", "replay");
  assert.equal(await inputsOf(titled.body.data.id), typed, "drawing history has typed answers into the shell");
  await page.goto(`${base}/sessions`);
  await page.getByRole("link", { name: HOSTILE }).waitFor();
  assert.equal(await page.evaluate(() => window.wasHit), undefined);
  assert.equal((await call("DELETE", `/api/sessions/${titled.body.data.id}`)).status, 200);
}

/** Counts what was typed into a session. */
async function inputsOf(session) {
  const events = await call("GET", `/api/sessions/${session}/events?from=0&limit=1000`);
  return events.body.data.events.filter((event) => event.kind === "terminal:input").length;
}

async function foreign() {
  const foreign = await call("POST", `/api/sandboxes/${seen.sandbox}/stop`, {}, { origin: "http://evil.example" });
  assert.equal(foreign.status, 403);
  const without = await first.context.request.fetch(`${base}/api/sandboxes/${seen.sandbox}/stop`, { method: "POST" });
  assert.equal(without.status(), 403);
  const rebound = await first.context.request.fetch(`${base}/api/status`, { headers: { host: "evil.example" } });
  assert.ok(rebound.status() >= 400, `a foreign host name was answered with ${rebound.status()}`);
  const blocked = await page.evaluate(
    () =>
      new Promise((resolve) => {
        document.addEventListener("securitypolicyviolation", (event) => resolve(event.effectiveDirective), { once: true });
        const script = document.createElement("script");
        script.textContent = "hit()";
        document.body.append(script);
        setTimeout(() => resolve("nothing was blocked"), 5_000);
      }),
  );
  assert.match(blocked, /^script-src/);
  assert.equal(await page.evaluate(() => window.wasHit), undefined);
  problems.splice(0);
}

async function replay() {
  await page.goto(`${base}/sessions/${seen.session}?view=replay`);
  await page.locator("[data-testid=replay][data-ready=true]").waitFor();
  await page.getByRole("combobox", { name: "Speed" }).selectOption("16");
  await page.getByTestId("play").click();
  await waitForOutput(page, "back-60", "replay");
  await page.getByRole("region", { name: "Steps" }).getByText("echo made-$((6*7))").click();
  await page.getByTestId("timeline").press("Home");
  await page.waitForFunction(() => !document.querySelector("[data-testid=replay] .xterm-rows")?.textContent?.includes("made-42"));
  const exported = await first.context.request.get(`${base}/api/sessions/${seen.session}/export?format=asciicast`);
  assert.match(await exported.text(), /^\{"version":\s?2|^\{.*"version":2/);
}

/** Asks the egress proxy of the sandbox for a connection, and returns the first line of its answer. */
async function askProxy(target) {
  const script = "proxy=${HTTP_PROXY#http://}; exec 3<>/dev/tcp/${proxy%:*}/${proxy#*:}; "
    + 'printf "CONNECT $1 HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n" >&3; head -n 1 <&3';
  const ran = await call("POST", `/api/sandboxes/${seen.sandbox}/exec`, { cmd: "bash", args: ["-c", script, "ask", target] });
  return `${ran.body?.data?.stdout} ${ran.body?.data?.stderr}`;
}

/** Asks until the answer is, or is not, a refusal: a changed list reaches the node by two controllers. */
async function askUntil(target, refused) {
  const end = Date.now() + DEADLINE;
  for (;;) {
    const answer = await askProxy(target);
    assert.match(answer, /^HTTP\/1\.1 \d+/);
    if (/ 403 /.test(answer) === refused) return;
    assert.ok(Date.now() < end, answer);
    await new Promise((resolve) => setTimeout(resolve, 200));
  }
}

async function allowHost() {
  await page.goto(`${base}/sandboxes/${seen.sandbox}/network`);
  await page.getByText("Nothing was refused").waitFor();
  assert.equal(await page.getByRole("textbox", { name: "Allowed ports" }).inputValue(), "443, 80");
  await askUntil("refused.invalid:8443", true);
  // Without a reload: the page's stream tells of the event.
  const row = page.getByTestId("refused").getByRole("row", { name: /refused\.invalid:8443/ });
  await row.waitFor();
  await checkAccessibility(page, "a refused host");
  await page.getByRole("button", { name: "Allow refused.invalid:8443" }).click();
  await row.getByText("Allowed now").waitFor();
  await askUntil("refused.invalid:8443", false);
  const hosts = page.getByRole("textbox", { name: "Allowed hosts" });
  assert.match(await hosts.inputValue(), /^github\.com\n[^]*\nrefused\.invalid$/);
  assert.equal(await page.getByRole("textbox", { name: "Allowed ports" }).inputValue(), "443, 80, 8443");
  await hosts.fill("github.com\nhttps://example.com");
  await page.getByRole("button", { name: "Save the network" }).click();
  await page.getByText("https://example.com", { exact: true }).waitFor();
  await hosts.fill("github.com");
  await page.getByRole("button", { name: "Save the network" }).click();
  await page.getByText("The network was saved.").waitFor();
  await row.getByRole("button", { name: "Allow refused.invalid:8443" }).waitFor();
  await askUntil("refused.invalid:8443", true);
}

async function hostileHosts() {
  // The most that gets through the proxy's parser, and then an event as a hostile node would write it.
  await askUntil("x'onclick=hit();.invalid:443", true);
  await page.getByTestId("refused").getByText("x'onclick=hit();.invalid:443").waitFor();
  const written = new Promise((resolve) => input.once("line", resolve));
  console.log(`refuse ${seen.sandbox} ${HOSTILE}\u202e`);
  await written;
  await page.getByTestId("refused").getByText(`${HOSTILE}\ufffd:443`).waitFor();
  await page.getByRole("link", { name: "Events" }).click();
  await page.getByTestId("events").getByText(HOSTILE).waitFor();
  await page.getByRole("link", { name: "Explain" }).click();
  await page.getByText(HOSTILE).first().waitFor();
  assert.equal(await page.evaluate(() => window.wasHit), undefined);
}

async function submitTask() {
  await page.goto(`${base}/tasks`);
  await page.getByText("No tasks yet").waitFor();
  await checkAccessibility(page, "no tasks");
  await page.getByRole("link", { name: "Submit a task" }).first().click();
  await page.getByRole("textbox", { name: "Name" }).fill("Wrong Name");
  await page.getByRole("textbox", { name: "Command" }).fill("true");
  await page.getByRole("button", { name: "Submit the task" }).click();
  await page.getByText("name has to be lower-case letters").waitFor();
  await page.getByRole("textbox", { name: "Name" }).fill("browser-task");
  const script = [
    `echo "told $WARREN_TASK_DESCRIPTION"`,
    `printf '\\033[31m%s\\n' '<script>hit()</script>'`,
    `printf '%s' '${HOSTILE}<script>hit()</script>' > "$WARREN_TASK_RESULT"`,
  ].join("\n");
  await page.getByRole("textbox", { name: "Command" }).fill(script);
  await page.getByRole("textbox", { name: "Description" }).fill(HOSTILE);
  await page.getByRole("button", { name: "Submit the task" }).click();
  await page.waitForURL(`${base}/tasks/browser-task`);
  // Without a reload: the page's stream tells of each change.
  await page.getByText("Succeeded", { exact: true }).first().waitFor();
  assert.equal(await page.getByTestId("task-result").innerText(), `${HOSTILE}<script>hit()</script>`);
  await page.getByTestId("task-log").getByText(`told ${HOSTILE}`).waitFor();
  assert.match(await page.getByTestId("task-log").innerText(), /^<script>hit\(\)<\/script>$/m);
  assert.equal(await page.getByTestId("task-command").innerText(), script);
  await page.getByTestId("task-conditions").getByRole("row", { name: /^Succeeded True/ }).waitFor();
  await page.getByRole("link", { name: "Tasks" }).click();
  await page.getByTestId("tasks").getByText(HOSTILE).waitFor();
  assert.equal(await page.evaluate(() => window.wasHit), undefined);
  const log = await call("GET", "/api/tasks/browser-task/log");
  assert.equal(log.headers["content-type"], "application/json");
}

async function cancelTask() {
  await page.getByTestId("tasks").waitFor();
  const submitted = await call("POST", "/api/tasks", { name: "long-task", command: ["sh", "-c", "echo begun; sleep 1000"] });
  assert.equal(submitted.status, 201);
  const again = await call("POST", "/api/tasks", { name: "long-task", command: ["true"] });
  assert.equal(again.body.error.code, "TASK_ALREADY_EXISTS");
  // Another client made it: the list shows it all the same.
  await page.getByTestId("tasks").getByRole("link", { name: "long-task" }).click();
  await page.getByText("Running", { exact: true }).first().waitFor();
  await page.getByTestId("task-log").getByText("begun").waitFor();
  await page.getByRole("button", { name: "Cancel long-task" }).click();
  await checkAccessibility(page, "question before a task is cancelled");
  await page.getByRole("dialog").getByRole("button", { name: "Cancel long-task" }).click();
  await page.getByText("Cancelled", { exact: true }).first().waitFor();
  await page.getByRole("button", { name: "Delete long-task" }).click();
  const dialog = page.getByRole("dialog");
  assert.equal(await dialog.getByRole("heading").innerText(), "Delete long-task?");
  await dialog.getByRole("button", { name: "Delete long-task" }).click();
  await page.waitForURL(`${base}/tasks`);
  await page.getByRole("link", { name: "long-task" }).waitFor({ state: "detached" });
  const gone = await call("GET", "/api/tasks/long-task");
  assert.equal(gone.body.error.code, "TASK_NOT_FOUND");
}

async function settings() {
  await page.goto(`${base}/settings`);
  await page.getByLabel("Memory").fill("1024");
  await page.getByRole("radio", { name: /^Kubernetes/ }).check();
  await page.getByTestId("k8s-runtime-class-select").selectOption("gvisor");
  await page.getByTestId("k8s-test-connection").click();
  await page.getByTestId("k8s-cluster-status").waitFor();
  await page.getByTestId("k8s-controller-status").waitFor();
  await page.getByRole("radio", { name: /^Warren/ }).check();
  await page.getByRole("button", { name: "Save the settings" }).click();
  await page.getByText("The settings were saved.").waitFor();
  await page.reload();
  assert.equal(await page.getByLabel("Memory").inputValue(), "1024");
  await page.getByLabel("Memory").fill("1");
  await page.getByRole("button", { name: "Save the settings" }).click();
  assert.equal(await page.getByLabel("Memory").evaluate((element) => element.validity.rangeUnderflow), true);
}

async function palette() {
  await page.goto(base);
  await page.getByTestId("sandboxes").waitFor();
  await page.keyboard.press("Control+k");
  await page.getByRole("combobox", { name: "Command" }).fill("dark theme");
  await page.keyboard.press("Enter");
  assert.equal(await page.evaluate(() => document.documentElement.dataset.theme), "dark");
  await page.keyboard.press("Control+k");
  await page.getByRole("combobox", { name: "Command" }).fill("theme of the system");
  await page.keyboard.press("Enter");
  await page.keyboard.press("Control+k");
  await page.getByRole("combobox", { name: "Command" }).fill(seen.sandbox);
  await page.keyboard.press("Enter");
  await page.waitForURL(`**/sandboxes/${seen.sandbox}/terminal**`);
}

async function everyPage() {
  const sandbox = `/sandboxes/${seen.sandbox}`;
  const paths = [
    "/", "/new", "/tasks", "/tasks/browser-task", "/new-task", "/new-task?like=browser-task", "/sessions", "/settings", `/sessions/${seen.session}`, `/sessions/${seen.session}?view=replay`,
    `${sandbox}/terminal`, `${sandbox}/files`, `${sandbox}/network`, `${sandbox}/events`, `${sandbox}/explain`, "/nothing-here",
  ];
  for (const path of paths) {
    await page.setViewportSize({ width: 1280, height: 800 });
    await page.goto(base + path);
    await page.waitForFunction(() => document.querySelector("main") !== null && document.querySelector(".loading") === null);
    for (const colorScheme of ["light", "dark"]) {
      await page.emulateMedia({ colorScheme, reducedMotion: "reduce" });
      await checkAccessibility(page, `${path} in ${colorScheme}`);
    }
    await page.setViewportSize({ width: 360, height: 740 });
    await checkWidth(page, path);
    await checkAccessibility(page, `${path} on a phone`);
  }
  await page.emulateMedia({ colorScheme: "light", reducedMotion: null });
  await page.setViewportSize({ width: 1280, height: 800 });
}

async function restart() {
  await page.goto(base);
  await page.getByTestId("connection").getByText("Live").waitFor();
  // A watch on the state, because it may be back before it is looked at.
  await page.evaluate(() => {
    window.states = [];
    const element = document.querySelector("[data-testid=connection]");
    new MutationObserver(() => window.states.push(element.textContent)).observe(element, {
      childList: true, characterData: true, subtree: true,
    });
  });
  const restarted = new Promise((resolve) => input.once("line", resolve));
  console.log("restart");
  await restarted;
  await page.waitForFunction(() => window.states.includes("Reconnecting") && window.states.at(-1) === "Live");
  await page.getByRole("link", { name: seen.sandbox }).or(page.getByText("browser-test")).first().waitFor();
}

async function stopAndStart() {
  await page.goto(`${base}/sandboxes/${seen.sandbox}/events`);
  await page.getByRole("button", { name: /^Stop / }).click();
  await page.getByRole("dialog").getByRole("button", { name: /^Stop / }).click();
  await page.getByText("Stopped", { exact: true }).waitFor();
  await page.getByRole("button", { name: /^Start / }).click();
  await page.getByText("Running", { exact: true }).waitFor();
}

async function deleteSandbox() {
  await page.goto(base);
  await page.getByTestId("sandboxes").getByRole("button", { name: /^Delete / }).click();
  const dialog = page.getByRole("dialog");
  const title = await dialog.getByRole("heading").innerText();
  assert.match(title, /^Delete .+\?$/);
  await checkAccessibility(page, "question");
  await dialog.getByRole("button", { name: title.slice(0, -1) }).click();
  await page.getByText("No sandboxes yet").waitFor();
  const sandboxes = await call("GET", "/api/sandboxes");
  assert.deepEqual(sandboxes.body.data, []);
}
