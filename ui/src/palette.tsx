import { useMemo, useState, type KeyboardEvent } from "react";
import type { Session } from "warren-react";
import { sandboxPage, sessionPage, taskPage, titleOf, type Sandbox, type Task } from "./api";
import { Dialog } from "./components/dialog";
import { Icon, type IconName } from "./components/icons";
import { useResource } from "./live";
import { setScreenReader, setTheme, useScreenReader } from "./preferences";
import { navigate } from "./router";
import { logOut } from "./shell";

interface Command {
  id: string;
  label: string;
  hint: string;
  icon: IconName;
  run: () => void;
}

/** How many commands are offered at once. */
const MOST_SHOWN = 12;

/** Everything that can be reached, by typing. */
export function Palette({ onClose }: { onClose: () => void }) {
  const [query, setQuery] = useState("");
  const [chosen, setChosen] = useState(0);
  const commands = useCommands();
  const found = useMemo(() => {
    const words = query.toLowerCase().split(/\s+/).filter(Boolean);
    const text = (command: Command) => `${command.label} ${command.hint}`.toLowerCase();
    return commands.filter((command) => words.every((word) => text(command).includes(word))).slice(0, MOST_SHOWN);
  }, [commands, query]);
  const current = Math.min(chosen, Math.max(0, found.length - 1));
  const run = (command: Command | undefined) => {
    if (command === undefined) return;
    onClose();
    command.run();
  };
  const key = (event: KeyboardEvent) => {
    const moves: Record<string, number> = { ArrowDown: 1, ArrowUp: -1 };
    const move = moves[event.key];
    if (move !== undefined && found.length > 0) {
      event.preventDefault();
      setChosen((current + move + found.length) % found.length);
    } else if (event.key === "Enter") {
      event.preventDefault();
      run(found[current]);
    }
  };
  return (
    <Dialog title="Commands" onClose={onClose} className="palette">
      <input
        type="text" className="palette-input" placeholder="Go to a sandbox, a task, a session, a page…" autoFocus
        aria-label="Command" role="combobox" aria-expanded="true" aria-controls="palette-list"
        aria-activedescendant={found[current] === undefined ? undefined : `command-${found[current].id}`}
        value={query} onKeyDown={key}
        onChange={(event) => {
          setQuery(event.target.value);
          setChosen(0);
        }}
      />
      <ul id="palette-list" role="listbox" aria-label="Commands" className="palette-list">
        {found.map((command, index) => (
          <li
            key={command.id} id={`command-${command.id}`} role="option" aria-selected={index === current}
            onMouseMove={() => setChosen(index)} onClick={() => run(command)}
          >
            <Icon name={command.icon} />
            <span>{command.label}</span>
            <span className="palette-hint">{command.hint}</span>
          </li>
        ))}
      </ul>
      {found.length === 0 && <p className="palette-none">Nothing matches “{query}”.</p>}
    </Dialog>
  );
}

function useCommands(): Command[] {
  const sandboxes = useResource<Sandbox[]>("/api/sandboxes", ["sandboxes"]).data;
  const sessions = useResource<Session[]>("/api/sessions", ["sessions"]).data;
  const tasks = useResource<Task[]>("/api/tasks", ["tasks"]).data;
  const screenReader = useScreenReader();
  return useMemo(() => {
    const go = (id: string, label: string, hint: string, icon: IconName, path: string): Command => ({
      id, label, hint, icon, run: () => navigate(path),
    });
    return [
      go("new", "Create a sandbox", "action", "plus", "/new"),
      go("new-task", "Submit a task", "action", "plus", "/new-task"),
      go("home", "Sandboxes", "page", "sandbox", "/"),
      go("tasks", "Tasks", "page", "task", "/tasks"),
      go("sessions", "Sessions", "page", "session", "/sessions"),
      go("settings", "Settings", "page", "settings", "/settings"),
      ...(sandboxes ?? []).map((sandbox) =>
        go(`b-${sandbox.id}`, titleOf(sandbox), `sandbox, ${sandbox.status}`, "sandbox", sandboxPage(sandbox.id)),
      ),
      ...(tasks ?? []).map((task) => go(`t-${task.name}`, task.name, `task, ${task.state}`, "task", taskPage(task.name))),
      ...(sessions ?? []).map((session) =>
        go(`s-${session.id}`, session.title || session.id, `session, ${session.state}`, "session", sessionPage(session.id)),
      ),
      { id: "light", label: "Light theme", hint: "look", icon: "sun", run: () => setTheme("light") },
      { id: "dark", label: "Dark theme", hint: "look", icon: "moon", run: () => setTheme("dark") },
      { id: "system", label: "Theme of the system", hint: "look", icon: "system", run: () => setTheme("system") },
      {
        id: "reader", label: screenReader ? "Terminals: screen reader mode off" : "Terminals: screen reader mode on",
        hint: "accessibility", icon: "terminal", run: () => setScreenReader(!screenReader),
      },
      { id: "logout", label: "Log out", hint: "action", icon: "logout", run: logOut },
    ];
  }, [sandboxes, sessions, tasks, screenReader]);
}
