import type { ITheme } from "@xterm/xterm";

/** Colours of the terminal in a dark page. */
export const DARK: ITheme = {
  background: "#101214",
  foreground: "#e3e6e8",
  cursor: "#e3e6e8",
  cursorAccent: "#101214",
  selectionBackground: "#3a4a5c",
  black: "#2a2e32", red: "#f07178", green: "#8fc97a", yellow: "#e2b65c",
  blue: "#72a7f2", magenta: "#c594e0", cyan: "#64c3c9", white: "#c9ced3",
  brightBlack: "#7d858d", brightRed: "#ff8f95", brightGreen: "#a9dd95", brightYellow: "#f3cd7e",
  brightBlue: "#94bffb", brightMagenta: "#d9b1ee", brightCyan: "#86d9de", brightWhite: "#ffffff",
};

/** Colours of the terminal in a light page. */
export const LIGHT: ITheme = {
  background: "#ffffff",
  foreground: "#1c2024",
  cursor: "#1c2024",
  cursorAccent: "#ffffff",
  selectionBackground: "#c6dcf8",
  black: "#1c2024", red: "#b3261e", green: "#236b2c", yellow: "#7a5200",
  blue: "#1d58b8", magenta: "#7d3c9c", cyan: "#0b6570", white: "#5b6268",
  brightBlack: "#5b6268", brightRed: "#c93a31", brightGreen: "#2c7d37", brightYellow: "#8c6100",
  brightBlue: "#2a69cf", brightMagenta: "#914fb1", brightCyan: "#137886", brightWhite: "#1c2024",
};
