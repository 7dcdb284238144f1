const PATHS = {
  sandbox: "M8 1.8 14 5v6l-6 3.2L2 11V5zM2 5l6 3.2L14 5M8 8.2v6",
  terminal: "M2 3h12v10H2zM4.5 6l2 2-2 2M8.5 10.2h3",
  session: "M8 2a6 6 0 1 0 0 12A6 6 0 0 0 8 2zM6.6 5.6l3.8 2.4-3.8 2.4z",
  task: "M3 2.5h10v11.5H3zM5.5 6.6l1.2 1.2 2.3-2.3M5.5 11h5",
  settings: "M2 4.5h6M12 4.5h2M2 11.5h2M8 11.5h6M10 2.7v3.6M6 9.7v3.6",
  plus: "M8 3v10M3 8h10",
  close: "m4 4 8 8M12 4l-8 8",
  search: "M7 2.5a4.5 4.5 0 1 0 0 9 4.5 4.5 0 0 0 0-9zM10.3 10.3 14 14",
  sun: "M8 5a3 3 0 1 0 0 6 3 3 0 0 0 0-6zM8 1v1.5M8 13.5V15M1 8h1.5M13.5 8H15M3 3l1 1M12 12l1 1M13 3l-1 1M4 12l-1 1",
  moon: "M13.5 9.5A6 6 0 0 1 6.5 2.5a6 6 0 1 0 7 7z",
  system: "M2 3h12v8H2zM6 14h4M8 11v3",
  warning: "M8 2 14.5 13.5h-13zM8 6.2v3.4M8 11.4v.2",
  check: "m3 8.5 3.2 3.2L13 5",
  file: "M4 1.8h5L12.5 5v9.2h-8.5zM9 1.8V5h3.5",
  folder: "M1.8 3.5h4.4l1.5 1.8h6.5v7.5H1.8z",
  link: "M6.5 9.5 9.5 6.5M7 4.5 8.7 2.8a2.9 2.9 0 0 1 4.3 4.3L11.3 9M9 11.5l-1.7 1.7A2.9 2.9 0 0 1 3 8.9L4.7 7",
  upload: "M8 11V2.5M4.5 6 8 2.5 11.5 6M2.5 11v2.5h11V11",
  download: "M8 2.5V11M4.5 7.5 8 11l3.5-3.5M2.5 11v2.5h11V11",
  refresh: "M13.5 8A5.5 5.5 0 1 1 11.6 3.8M13.5 1.8v3h-3",
  play: "M4.5 2.8v10.4L13 8z",
  pause: "M5 3v10M11 3v10",
  stop: "M3.5 3.5h9v9h-9z",
  trash: "M2.5 4h11M6 4V2.2h4V4M4 4l.7 9.8h6.6L12 4M6.7 6.8v4.4M9.3 6.8v4.4",
  logout: "M6.5 2.5h-4v11h4M10.5 4.5 14 8l-3.5 3.5M14 8H6",
  chevron: "m6 3.5 4.5 4.5L6 12.5",
} as const;

export type IconName = keyof typeof PATHS;

/** A small picture beside words; it says nothing that they do not. */
export function Icon({ name }: { name: IconName }) {
  return (
    <svg className="icon" viewBox="0 0 16 16" aria-hidden="true" focusable="false">
      <path d={PATHS[name]} />
    </svg>
  );
}
