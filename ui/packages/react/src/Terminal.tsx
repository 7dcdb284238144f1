import { useEffect, useRef, useState } from "react";
import type { SessionConnection } from "./connection";
import { isOutput } from "./events";
import type { Screen } from "./screen";
import { DARK, LIGHT } from "./themes";
import type { Session } from "./types";

export interface TerminalProps {
  connection: SessionConnection;
  session: Session | null;
  /** Shows and does not type. */
  readOnly?: boolean;
  /** Is on the page but not to be seen, as behind another tab. */
  hidden?: boolean;
  dark?: boolean;
  fontSize?: number;
  screenReader?: boolean;
  label?: string;
  /** Takes the keyboard as soon as it is drawn. */
  autoFocus?: boolean;
}

/** How long a size must hold before the terminal is told, while a window is being dragged. */
const RESIZE_AFTER_MS = 80;

/**
 * A session's terminal. Whoever has the keyboard in it decides its size; other viewers see it in that size.
 */
export function Terminal(props: TerminalProps) {
  const { connection, session, readOnly = false, hidden = false, dark = false, fontSize = 13 } = props;
  const { screenReader = false, label = "Terminal", autoFocus = false } = props;
  const element = useRef<HTMLDivElement>(null);
  const [screen, setScreen] = useState<Screen | null>(null);
  const [failure, setFailure] = useState<string | null>(null);
  const initial = useRef({ dark, fontSize, session, autoFocus });
  initial.current = { dark, fontSize, session, autoFocus };

  useEffect(() => {
    let screen: Screen | null = null;
    let gone = false;
    const cleanups: (() => void)[] = [];
    void import("./screen").then(
      (module) => {
        if (gone || element.current === null) return;
        const { dark, fontSize, session, autoFocus } = initial.current;
        const made = new module.Screen(element.current, {
          columns: session?.columns ?? 80,
          rows: session?.rows ?? 24,
          theme: dark ? DARK : LIGHT,
          fontSize, readOnly, screenReader, label,
        });
        screen = made;
        cleanups.push(
          connection.subscribe(async (events, caughtUp) => {
            made.answers = caughtUp && !readOnly && made.terminal.element?.contains(document.activeElement) === true;
            const output = events.filter(isOutput);
            await Promise.all(output.map((event) => made.write(event.bytes)));
          }),
        );
        if (!readOnly) {
          const typed = made.terminal.onData((data) => void connection.input(data));
          const bytes = made.terminal.onBinary((data) => {
            void connection.input(Uint8Array.from(data, (character) => character.charCodeAt(0)));
          });
          cleanups.push(() => typed.dispose(), () => bytes.dispose());
        }
        if (autoFocus) made.terminal.focus();
        setScreen(made);
      },
      () => setFailure("The terminal could not be loaded. Reload the page."),
    );
    return () => {
      gone = true;
      for (const cleanup of cleanups) cleanup();
      screen?.dispose();
      setScreen(null);
    };
  }, [connection, readOnly, screenReader, label]);

  useEffect(() => {
    if (screen === null) return;
    screen.terminal.options.theme = dark ? DARK : LIGHT;
  }, [screen, dark]);
  useEffect(() => {
    if (screen !== null) screen.terminal.options.fontSize = fontSize;
  }, [screen, fontSize]);

  useSize({ screen, element, connection, session, follows: readOnly || session?.state === "ended", hidden });

  const classes = `warren-terminal${dark ? " is-dark" : ""}`;
  return (
    <div className={classes} hidden={hidden}>
      <div className="warren-terminal-screen" ref={element} data-testid="terminal" data-ready={screen !== null} />
      {failure !== null && <p role="alert">{failure}</p>}
    </div>
  );
}

interface Size {
  screen: Screen | null;
  element: React.RefObject<HTMLDivElement | null>;
  connection: SessionConnection;
  session: Session | null;
  follows: boolean;
  hidden: boolean;
}

/** Fits the terminal to its element while it has the keyboard, and follows the session's size otherwise. */
function useSize({ screen, element, connection, session, follows, hidden }: Size) {
  const columns = session?.columns ?? null;
  const rows = session?.rows ?? null;
  const known = session !== null;
  useEffect(() => {
    if (screen === null || columns === null || rows === null) return;
    screen.resize(columns, rows);
  }, [screen, columns, rows]);

  useEffect(() => {
    const container = element.current;
    if (screen === null || container === null || !follows || hidden) return;
    const observer = new ResizeObserver(() => screen.scaleTo(container.clientWidth));
    observer.observe(container);
    return () => observer.disconnect();
  }, [screen, element, follows, hidden]);

  useEffect(() => {
    const container = element.current;
    if (screen === null || container === null || follows || hidden || !known) return;
    let timer: ReturnType<typeof setTimeout> | undefined;
    const apply = () => {
      const size = screen.fitting();
      if (size === null || !container.contains(document.activeElement)) return;
      const { terminal } = screen;
      if (size.columns === terminal.cols && size.rows === terminal.rows) return;
      terminal.resize(size.columns, size.rows);
      void connection.resize(size.columns, size.rows);
    };
    const soon = () => {
      clearTimeout(timer);
      timer = setTimeout(apply, RESIZE_AFTER_MS);
    };
    const observer = new ResizeObserver(soon);
    observer.observe(container);
    container.addEventListener("focusin", soon);
    soon();
    return () => {
      clearTimeout(timer);
      observer.disconnect();
      container.removeEventListener("focusin", soon);
    };
  }, [screen, element, connection, follows, hidden, known]);
}
