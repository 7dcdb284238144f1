// The screen of a terminal, on xterm.js. A chunk of its own: pages without a terminal do not load it.

import { FitAddon } from "@xterm/addon-fit";
import { Terminal, type ITheme } from "@xterm/xterm";
import "@xterm/xterm/css/xterm.css";

export interface ScreenOptions {
  columns: number;
  rows: number;
  theme: ITheme;
  fontSize: number;
  readOnly: boolean;
  screenReader: boolean;
  label: string;
}

const FONT = 'ui-monospace, "SF Mono", "Cascadia Mono", "Segoe UI Mono", "Liberation Mono", "DejaVu Sans Mono", monospace';

const LARGEST_LETTERS = 13;
const SMALLEST_LETTERS = 5;

/** A terminal's screen in an element of the page. */
export class Screen {
  readonly terminal: Terminal;
  readonly #fit = new FitAddon();
  /** Programs ask terminals questions. Only one viewer answers them, and none while history is drawn. */
  answers = false;
  #width = 0;
  readonly #drawing = new Set<() => void>();

  constructor(element: HTMLElement, options: ScreenOptions) {
    this.terminal = new Terminal({
      cols: options.columns,
      rows: options.rows,
      theme: options.theme,
      fontSize: options.fontSize,
      fontFamily: FONT,
      lineHeight: 1.2,
      scrollback: 10_000,
      cursorBlink: !options.readOnly,
      disableStdin: options.readOnly,
      screenReaderMode: options.screenReader,
      minimumContrastRatio: 4.5,
      linkHandler: { activate: (_event, uri) => openLink(uri), allowNonHttpProtocols: false },
    });
    this.terminal.loadAddon(this.#fit);
    this.terminal.open(element);
    this.terminal.textarea?.setAttribute("aria-label", options.label);
    this.#refuseQuestions();
    this.terminal.attachCustomKeyEventHandler((event) => this.#key(event));
  }

  /** Draws bytes. The promise ends when they are on the screen. */
  write(bytes: Uint8Array): Promise<void> {
    return new Promise((resolve) => {
      const done = () => {
        this.#drawing.delete(done);
        resolve();
      };
      this.#drawing.add(done);
      this.terminal.write(bytes, done);
    });
  }

  /** Returns the size that fits into the element, if it is visible. */
  fitting(): { columns: number; rows: number } | null {
    const size = this.#fit.proposeDimensions();
    if (size === undefined || !Number.isFinite(size.cols) || !Number.isFinite(size.rows)) return null;
    return { columns: Math.max(2, size.cols), rows: Math.max(1, size.rows) };
  }

  /** Changes its size, within what a terminal can have. */
  resize(columns: number, rows: number): void {
    if (!(columns >= 2 && columns <= 1_000 && rows >= 1 && rows <= 1_000)) return;
    if (columns === this.terminal.cols && rows === this.terminal.rows) return;
    this.terminal.resize(Math.trunc(columns), Math.trunc(rows));
    if (this.#width > 0) this.scaleTo(this.#width);
  }

  /** Makes the letters as large as fits into a width: the number of columns is not ours to choose. */
  scaleTo(width: number): void {
    this.#width = width;
    const current = this.terminal.options.fontSize ?? LARGEST_LETTERS;
    const drawn = this.terminal.element?.querySelector(".xterm-screen")?.clientWidth ?? 0;
    if (drawn === 0 || width === 0) return;
    const fitting = Math.floor(((current * width) / drawn) * 4) / 4;
    const next = Math.min(LARGEST_LETTERS, Math.max(SMALLEST_LETTERS, fitting));
    if (next !== current) this.terminal.options.fontSize = next;
  }

  /** Takes the screen away. What waits for it to draw goes on. */
  dispose(): void {
    this.terminal.dispose();
    for (const done of this.#drawing) done();
  }

  /** Swallows what makes xterm.js type an answer, unless this viewer is the one to answer. */
  #refuseQuestions(): void {
    const { parser } = this.terminal;
    const refuse = () => !this.answers;
    for (const final of ["c", "n"]) {
      for (const prefix of ["", "?", ">", "="]) {
        parser.registerCsiHandler(prefix === "" ? { final } : { prefix, final }, refuse);
      }
    }
    parser.registerCsiHandler({ intermediates: "$", final: "p" }, refuse);
    parser.registerCsiHandler({ prefix: "?", intermediates: "$", final: "p" }, refuse);
    parser.registerCsiHandler({ final: "t" }, refuse);
    parser.registerDcsHandler({ intermediates: "$", final: "q" }, refuse);
    for (const code of [4, 10, 11, 12]) {
      parser.registerOscHandler(code, (data) => data.includes("?") && !this.answers);
    }
  }

  #key(event: KeyboardEvent): boolean {
    if (event.type !== "keydown") return true;
    const copies = event.code === "KeyC" && event.ctrlKey && this.terminal.hasSelection();
    if (copies) {
      void navigator.clipboard?.writeText(this.terminal.getSelection());
      this.terminal.clearSelection();
      event.preventDefault();
      return false;
    }
    // The way out for people without a mouse: Tab belongs to the shell.
    if (event.key === "Escape" && event.shiftKey) {
      this.terminal.blur();
      return false;
    }
    return true;
  }
}

/** Opens a link that a program printed. It may be hostile: it is shown first, and gets no handle on this page. */
function openLink(uri: string): void {
  let url: URL;
  try {
    url = new URL(uri);
  } catch {
    return;
  }
  if (url.protocol !== "https:" && url.protocol !== "http:") return;
  if (window.confirm(`A program in the sandbox printed this link. Open it?\n\n${url.href}`)) {
    window.open(url.href, "_blank", "noopener,noreferrer");
  }
}
