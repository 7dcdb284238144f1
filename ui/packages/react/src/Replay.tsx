import { useEffect, useRef, useState } from "react";
import { isOutput, jsonOf } from "./events";
import type { Screen } from "./screen";
import { DARK, LIGHT } from "./themes";
import type { SessionEvent } from "./types";

export interface ReplayProps {
  /** The recorded events, in order. */
  events: readonly SessionEvent[];
  /** How many of them have happened. Going back draws the screen again from the beginning. */
  position: number;
  columns: number;
  rows: number;
  dark?: boolean;
  label?: string;
}

/** The screen of a recorded terminal at one moment. */
export function Replay({ events, position, columns, rows, dark = false, label = "Recorded terminal" }: ReplayProps) {
  const element = useRef<HTMLDivElement>(null);
  const [screen, setScreen] = useState<Screen | null>(null);
  const drawn = useRef(0);
  const initial = useRef({ columns, rows, dark });
  initial.current = { columns, rows, dark };

  useEffect(() => {
    let screen: Screen | null = null;
    let gone = false;
    void import("./screen").then((module) => {
      if (gone || element.current === null) return;
      const { columns, rows, dark } = initial.current;
      const theme = dark ? DARK : LIGHT;
      screen = new module.Screen(element.current, {
        columns, rows, theme, fontSize: 13, readOnly: true, screenReader: false, label,
      });
      drawn.current = 0;
      setScreen(screen);
    });
    return () => {
      gone = true;
      screen?.dispose();
      setScreen(null);
    };
  }, [events, label]);

  useEffect(() => {
    if (screen !== null) screen.terminal.options.theme = dark ? DARK : LIGHT;
  }, [screen, dark]);

  useEffect(() => {
    if (screen === null) return;
    if (position < drawn.current) {
      screen.terminal.reset();
      screen.resize(columns, rows);
      drawn.current = 0;
    }
    for (const event of events.slice(drawn.current, position)) {
      if (isOutput(event)) void screen.write(event.bytes);
      else resizeAsTold(screen, event);
    }
    drawn.current = position;
  }, [screen, events, position, columns, rows]);

  useEffect(() => {
    const container = element.current;
    if (screen === null || container === null) return;
    const observer = new ResizeObserver(() => screen.scaleTo(container.clientWidth));
    observer.observe(container);
    return () => observer.disconnect();
  }, [screen]);

  return (
    <div className={`warren-terminal is-replay${dark ? " is-dark" : ""}`}>
      <div className="warren-terminal-screen" ref={element} data-testid="replay" data-ready={screen !== null} />
    </div>
  );
}

function resizeAsTold(screen: Screen, event: SessionEvent): void {
  if (event.kind !== "state") return;
  const fields = jsonOf(event);
  const { columns, rows } = fields ?? {};
  if (typeof columns !== "number" || typeof rows !== "number") return;
  // Behind what is still to be drawn in the old size.
  void screen.write(new Uint8Array()).then(() => screen.resize(columns, rows));
}
