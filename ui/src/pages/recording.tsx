import { useEffect, useMemo, useState } from "react";
import { isOutput, jsonOf, Replay, type Session, type SessionEvent } from "warren-react";
import { EmptyState, ErrorNote, Loading } from "../components/feedback";
import { Icon } from "../components/icons";
import { sessionTitle } from "../components/sessions";
import { duration, size } from "../components/time";
import { useTheme } from "../preferences";
import { countUntil, timesOf, useRecording } from "../recording";

const SPEEDS = [0.5, 1, 2, 4, 8, 16];

/** How many marks the timeline shows. */
const MOST_MARKS = 400;

/** How many steps are listed. */
const MOST_STEPS = 1_000;

/** A session's recording: its screen at any moment, and its steps. */
export function Recording({ session }: { session: Session }) {
  const { events, bytes, complete, error, again } = useRecording(session);
  if (error !== null) {
    return <ErrorNote title="The recording could not be read" error={error} action={{ label: "Try again", run: again }} />;
  }
  if (!complete) return <Loading label={`Reading the recording, ${size(bytes)}`} />;
  if (!events.some(isOutput)) {
    return <EmptyState title="Nothing was recorded" text="This session ended before its terminal showed anything." />;
  }
  return <Player session={session} events={events} />;
}

function Player({ session, events }: { session: Session; events: SessionEvent[] }) {
  const [skipPauses, setSkipPauses] = useState(true);
  const [speed, setSpeed] = useState(1);
  const [playing, setPlaying] = useState(false);
  const times = useMemo(() => timesOf(events, skipPauses), [events, skipPauses]);
  const length = times.at(-1) ?? 0;
  const [moment, setMoment] = useState(0);
  const { dark } = useTheme();
  const position = countUntil(times, moment);
  const steps = useMemo(() => stepsOf(events), [events]);
  const first = useMemo(() => sizeOf(events, session), [events, session]);

  useEffect(() => {
    if (!playing) return;
    let last = performance.now();
    let frame = requestAnimationFrame(function tick(now) {
      const passed = (now - last) * speed;
      last = now;
      setMoment((before) => Math.min(length, before + passed));
      frame = requestAnimationFrame(tick);
    });
    return () => cancelAnimationFrame(frame);
  }, [playing, speed, length]);
  useEffect(() => {
    if (moment >= length) setPlaying(false);
  }, [moment, length]);

  const toggle = () => {
    if (!playing && moment >= length) setMoment(0);
    setPlaying(!playing);
  };
  const togglePauses = (skip: boolean) => {
    // The same event stays on the screen.
    const current = Math.max(0, position - 1);
    setSkipPauses(skip);
    setMoment(timesOf(events, skip)[current] ?? 0);
  };
  return (
    <div className="recording">
      <div className="terminal-frame">
        <Replay
          events={events} position={position} columns={first.columns} rows={first.rows} dark={dark}
          label={`Recording of ${sessionTitle(session)}`}
        />
        <div className="player">
          <button type="button" className="button button-small" onClick={toggle} data-testid="play">
            <Icon name={playing ? "pause" : "play"} /> {playing ? "Pause" : "Play"}
          </button>
          <span className="numbers player-time">{duration(moment)} / {duration(length)}</span>
          <Timeline times={times} steps={steps} length={length} moment={moment} seek={setMoment} />
          <label className="player-option">
            <span className="hidden">Speed</span>
            <select value={speed} onChange={(event) => setSpeed(Number(event.target.value))}>
              {SPEEDS.map((one) => <option key={one} value={one}>{one}×</option>)}
            </select>
          </label>
          <label className="player-option">
            <input type="checkbox" checked={skipPauses} onChange={(event) => togglePauses(event.target.checked)} />
            Skip pauses
          </label>
        </div>
      </div>
      <Steps steps={steps} times={times} position={position} seek={setMoment} />
    </div>
  );
}

interface Step {
  index: number;
  kind: string;
  text: string;
}

function sizeOf(events: readonly SessionEvent[], session: Session): { columns: number; rows: number } {
  const told = events.slice(0, 20).map((event) => (event.kind === "state" ? jsonOf(event) : null));
  const first = told.find((fields) => typeof fields?.columns === "number" && typeof fields.rows === "number");
  if (first != null) return { columns: Number(first.columns), rows: Number(first.rows) };
  return { columns: session.columns ?? 80, rows: session.rows ?? 24 };
}

/** Returns what was typed, line by line, and what an agent did. */
function stepsOf(events: readonly SessionEvent[]): Step[] {
  const steps: Step[] = [];
  const decoder = new TextDecoder();
  let line = "";
  let began = 0;
  for (const [index, event] of events.entries()) {
    if (steps.length >= MOST_STEPS) break;
    if (event.kind === "terminal:input") {
      for (const character of decoder.decode(event.bytes, { stream: true })) {
        if (character === "\r" || character === "\n") {
          if (line.trim() !== "") steps.push({ index: began, kind: "typed", text: line });
          line = "";
        } else if (character === "\x7f" || character === "\b") {
          line = line.slice(0, -1);
        } else if (character >= " ") {
          if (line === "") began = index;
          line += character;
        }
      }
    } else if (event.kind.startsWith("tool:")) {
      steps.push({ index, kind: event.kind.slice(5), text: describe(event) });
    } else if (event.kind === "state") {
      const fields = jsonOf(event);
      const status = fields?.status ?? fields?.state;
      if (typeof status === "string") steps.push({ index, kind: "state", text: stateOf(status, fields) });
    }
  }
  return steps;
}

function stateOf(status: string, fields: Record<string, unknown> | null): string {
  const code = fields?.exitCode;
  if (status === "active") return "began";
  return status === "ended" && typeof code === "number" ? `ended with exit code ${code}` : status;
}

function describe(event: SessionEvent): string {
  const fields = jsonOf(event);
  const name = fields?.name ?? fields?.tool;
  const rest = new TextDecoder().decode(event.bytes).slice(0, 300);
  return typeof name === "string" ? `${name} ${rest}` : rest;
}

interface TimelineProps {
  times: readonly number[];
  steps: readonly Step[];
  length: number;
  moment: number;
  seek: (moment: number) => void;
}

function Timeline({ times, steps, length, moment, seek }: TimelineProps) {
  const marks = useMemo(() => {
    const places = steps.map((step) => Math.round(((times[step.index] ?? 0) / Math.max(1, length)) * 1_000) / 10);
    return [...new Set(places)].slice(0, MOST_MARKS);
  }, [steps, times, length]);
  return (
    <div className="timeline">
      <div className="timeline-marks" aria-hidden="true">
        {marks.map((place) => <span key={place} style={{ insetInlineStart: `${place}%` }} />)}
      </div>
      <input
        type="range" min={0} max={Math.max(1, Math.ceil(length))} step={1} value={Math.round(moment)} data-testid="timeline"
        aria-label="Moment" aria-valuetext={`${duration(moment)} of ${duration(length)}`}
        onChange={(event) => seek(Number(event.target.value))}
      />
    </div>
  );
}

interface StepsProps {
  steps: readonly Step[];
  times: readonly number[];
  position: number;
  seek: (moment: number) => void;
}

function Steps({ steps, times, position, seek }: StepsProps) {
  if (steps.length === 0) return null;
  return (
    <section className="steps" aria-label="Steps">
      <h2>Steps</h2>
      <ol>
        {steps.map((step, index) => (
          <li key={index}>
            <button
              type="button" className={step.index < position ? "step is-past" : "step"}
              onClick={() => seek(times[step.index] ?? 0)}
            >
              <span className="step-time numbers">{duration(times[step.index] ?? 0)}</span>
              <span className="step-kind">{step.kind}</span>
              <span className="step-text mono">{step.text}</span>
            </button>
          </li>
        ))}
      </ol>
    </section>
  );
}
