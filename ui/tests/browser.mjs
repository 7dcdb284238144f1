// A browser with the page in it, and what every step needs: terminals as text, accessibility, hostile input noticed.

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { chromium } from "playwright-core";

const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

/** How long a step waits for a condition. */
export const DEADLINE = 30_000;

// The last ones keep Chromium from asking for things on the internet, which a closed network refuses slowly.
const FLAGS = [
  "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage",
  "--disable-background-networking", "--disable-component-update", "--disable-sync",
];

/** Starts the browser. */
export function launch() {
  const executablePath = process.env.WARREN_CHROMIUM ?? "/usr/bin/chromium";
  return chromium.launch({ executablePath, args: FLAGS, headless: true });
}

/** Opens a window of its own, which knows nothing of others, and notes what must never happen in it. */
export async function openWindow(browser, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, colorScheme: "light", ...options });
  context.setDefaultTimeout(DEADLINE);
  const page = await context.newPage();
  const problems = [];
  page.on("pageerror", (error) => problems.push(`the page threw ${error.message}`));
  page.on("dialog", (dialog) => {
    problems.push(`a dialog appeared: ${dialog.message()}`);
    void dialog.dismiss();
  });
  page.on("console", (message) => {
    if (message.text().includes("Content Security Policy")) problems.push(message.text());
  });
  await page.addInitScript(() => {
    window.hit = () => {
      window.wasHit = true;
    };
  });
  return { context, page, problems };
}

/** Waits until the visible terminal shows a text. */
export async function waitForOutput(page, text, testId = "terminal") {
  await page.waitForFunction(
    ([id, wanted]) => {
      const screens = [...document.querySelectorAll(`[data-testid=${id}]`)].filter((one) => one.offsetParent !== null);
      // Spaces of a terminal are not those of a text.
      const shown = screens.map((one) => one.querySelector(".xterm-rows")?.textContent ?? "").join("\n");
      return shown.replaceAll("\u00a0", " ").includes(wanted);
    },
    [testId, text],
  );
}

/** Types a line into the visible terminal. */
export async function typeLine(page, line) {
  await page.locator("[data-testid=terminal][data-ready=true]:visible").click();
  await page.keyboard.insertText(line);
  await page.keyboard.press("Enter");
}

/** Fails for each serious violation that axe finds on the page as it is. */
export async function checkAccessibility(page, where) {
  // By the protocol, past the page's own policy, which allows no foreign script.
  await page.evaluate(AXE);
  const violations = await page.evaluate(async () => {
    const { violations } = await window.axe.run(document, { resultTypes: ["violations"] });
    return violations
      .filter(({ impact }) => impact === "serious" || impact === "critical")
      .map(({ id, help, nodes }) => `${id}: ${help}: ${nodes.map((node) => node.html.slice(0, 200)).join(" | ")}`);
  });
  if (violations.length > 0) throw new Error(`${where}: ${violations.join("\n")}`);
}

/** Fails if the page is wider than its window. */
export async function checkWidth(page, where) {
  const over = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
  if (over > 0) throw new Error(`${where} is ${over} pixels wider than the window`);
}
