import { useEffect, useSyncExternalStore } from "react";
import { WarrenError } from "warren-react";
import { api, client, login, sandboxPage } from "./api";
import { Boundary } from "./components/boundary";
import { EmptyState, Loading } from "./components/feedback";
import { Toasts, notify } from "./components/toasts";
import { forget } from "./live";
import { CreatePage } from "./pages/create";
import { DashboardPage } from "./pages/dashboard";
import { LoginPage } from "./pages/login";
import { SandboxPage } from "./pages/sandbox";
import { SessionPage } from "./pages/session";
import { SessionsPage } from "./pages/sessions";
import { SettingsPage } from "./pages/settings";
import { TaskPage } from "./pages/task";
import { CreateTaskPage } from "./pages/task_create";
import { TasksPage } from "./pages/tasks";
import { Link, navigate, partsOf, useLocation } from "./router";
import { Shell } from "./shell";

/** Reads the key of a link that `warren serve` printed. */
function keyFromAddress(): string | null {
  return new URLSearchParams(location.hash.slice(1)).get("key");
}

/** Removes the key from the address, which history and screenshots would keep. */
function forgetKey(): void {
  history.replaceState(null, "", location.pathname + location.search);
}

async function findOut(): Promise<void> {
  const key = keyFromAddress();
  if (key !== null) {
    try {
      await api.login(key);
      login.set(true);
      return;
    } catch (error) {
      notify("error", `The link's key was not accepted: ${(error as Error).message}`);
    } finally {
      // Not before: a page that is loaded again meanwhile needs it.
      forgetKey();
    }
  }
  for (;;) {
    try {
      await client.request("GET", "/api/status");
      return login.set(true);
    } catch (error) {
      if (error instanceof WarrenError && error.status === 401) return login.set(false);
      // The service may be starting. Any other answer than 401 means that the browser is known.
      if (error instanceof WarrenError && error.status !== 0) return login.set(true);
      await new Promise((resolve) => setTimeout(resolve, 1_000));
    }
  }
}

let asked: Promise<void> | null = null;

export function App() {
  const state = useSyncExternalStore(login.watch, () => login.state);
  useEffect(() => {
    asked ??= findOut();
    const newKey = () => {
      if (location.hash.includes("key=")) void findOut();
    };
    window.addEventListener("hashchange", newKey);
    return () => window.removeEventListener("hashchange", newKey);
  }, []);
  useEffect(() => {
    if (state === false) forget();
  }, [state]);
  return (
    <>
      {state === null && <Loading page label="Connecting to the service" />}
      {state === false && <LoginPage />}
      {state === true && (
        <Shell>
          <Routes />
        </Shell>
      )}
      <Toasts />
    </>
  );
}

function Routes() {
  const { path } = useLocation();
  return (
    <Boundary key={path.split("/").slice(0, 3).join("/")}>
      <Route parts={partsOf(path)} />
    </Boundary>
  );
}

function Route({ parts }: { parts: string[] }) {
  const [first, id, tab] = parts;
  if (first === undefined) return <DashboardPage />;
  if (first === "new" && id === undefined) return <CreatePage />;
  if (first === "settings" && id === undefined) return <SettingsPage />;
  if (first === "sessions") return id === undefined ? <SessionsPage /> : <SessionPage key={id} id={id} />;
  if (first === "new-task" && id === undefined) return <CreateTaskPage />;
  if (first === "tasks") return id === undefined ? <TasksPage /> : <TaskPage key={id} name={id} />;
  if (first === "sandboxes" && id === undefined) return <Redirect to="/" />;
  if (first === "sandboxes" && id !== undefined) {
    if (tab === undefined) return <Redirect to={sandboxPage(id)} />;
    return <SandboxPage key={id} id={id} tab={tab} />;
  }
  return (
    <EmptyState title="There is no such page" text="The address may be mistyped or from another version.">
      <Link className="button" href="/">Go to the sandboxes</Link>
    </EmptyState>
  );
}

function Redirect({ to }: { to: string }) {
  useEffect(() => navigate(to, { replace: true }), [to]);
  return null;
}
