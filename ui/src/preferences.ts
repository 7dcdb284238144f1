// The preferences that this browser remembers: the theme, and whether terminals speak to screen
// readers.

import { useSyncExternalStore } from "react";

export type Theme = "system" | "light" | "dark";

const listeners = new Set<() => void>();
const media = window.matchMedia("(prefers-color-scheme: dark)");
media.addEventListener("change", () => announce());

function announce(): void {
  for (const listener of [...listeners]) listener();
}

function read(name: string): string | null {
  try {
    return localStorage.getItem(name);
  } catch {
    return null;
  }
}

function write(name: string, value: string): void {
  try {
    localStorage.setItem(name, value);
  } catch {
    // Private windows may refuse. The choice then lasts as long as the page.
  }
}

let theme: Theme = ((): Theme => {
  const saved = read("warren.theme");
  return saved === "light" || saved === "dark" ? saved : "system";
})();
let screenReader = read("warren.screenReader") === "yes";

function apply(): void {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
}
apply();

function subscribe(listener: () => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/** Returns the chosen theme and whether the page is dark now. */
export function useTheme(): { theme: Theme; dark: boolean } {
  const chosen = useSyncExternalStore(subscribe, () => theme);
  const system = useSyncExternalStore(subscribe, () => media.matches);
  return { theme: chosen, dark: chosen === "dark" || (chosen === "system" && system) };
}

export function setTheme(next: Theme): void {
  theme = next;
  write("warren.theme", next);
  apply();
  announce();
}

/** Returns true if terminals keep their text readable for screen readers, which costs speed. */
export function useScreenReader(): boolean {
  return useSyncExternalStore(subscribe, () => screenReader);
}

export function setScreenReader(next: boolean): void {
  screenReader = next;
  write("warren.screenReader", next ? "yes" : "no");
  announce();
}
