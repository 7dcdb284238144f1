// A router of our own: five routes need no library.

import { useSyncExternalStore, type AnchorHTMLAttributes, type MouseEvent } from "react";

const listeners = new Set<() => void>();
window.addEventListener("popstate", () => announce());

function announce(): void {
  for (const listener of [...listeners]) listener();
}

function subscribe(listener: () => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/** Goes to a path of this application. */
export function navigate(path: string, options: { replace?: boolean } = {}): void {
  if (path === location.pathname + location.search) return;
  if (options.replace === true) history.replaceState(null, "", path);
  else history.pushState(null, "", path);
  announce();
}

/** Returns the path and the query of the address, and renders again when they change. */
export function useLocation(): { path: string; query: URLSearchParams } {
  const address = useSyncExternalStore(subscribe, () => location.pathname + location.search);
  const [path = "/", query = ""] = address.split("?");
  return { path, query: new URLSearchParams(query) };
}

/** Returns the decoded parts of a path: `/sandboxes/a%2Fb` is `["sandboxes", "a/b"]`. */
export function partsOf(path: string): string[] {
  return path
    .split("/")
    .filter((part) => part !== "")
    .map((part) => {
      try {
        return decodeURIComponent(part);
      } catch {
        return part;
      }
    });
}

/** A link within the application. */
export function Link({ href, onClick, ...rest }: AnchorHTMLAttributes<HTMLAnchorElement> & { href: string }) {
  const click = (event: MouseEvent<HTMLAnchorElement>) => {
    onClick?.(event);
    const elsewhere = event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey;
    if (event.defaultPrevented || elsewhere) return;
    event.preventDefault();
    navigate(href);
  };
  return <a href={href} onClick={click} {...rest} />;
}
