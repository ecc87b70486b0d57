// SPDX-License-Identifier: Apache-2.0
// A headless browser, and the requirements of every check: no unexpected dialog, nothing on the console,
// nothing fetched from the network.

import { chromium } from "playwright-core";

const CHROMIUM = process.env.CHROMIUM ?? "/usr/bin/chromium";
// Of a single condition, such as the start of the browser or a text on the page.
const TIMEOUT_MS = 120_000;

export function check(holds, message) {
  if (!holds) throw new Error(message);
}

/** Runs `steps(page, answers)`; the next dialog gets the next of `answers`. Pages of `server` may be asked for. */
export async function inBrowser(steps, server) {
  const browser = await chromium.launch({ executablePath: CHROMIUM, args: ["--no-sandbox"], timeout: TIMEOUT_MS });
  try {
    const page = await browser.newPage({ viewport: { width: 1400, height: 900 } });
    page.setDefaultTimeout(TIMEOUT_MS);
    const complaints = [];
    const answers = [];
    page.on("console", (message) => message.type() === "error" && complaints.push(message.text()));
    page.on("pageerror", (error) => complaints.push(String(error)));
    page.on("request", (request) => {
      const url = request.url();
      const isLocal = /^(file|data|blob):/.test(url) || (server !== undefined && url.startsWith(`${server}/`));
      if (!isLocal) complaints.push(`asks the network for ${url}`);
    });
    page.on("dialog", async (dialog) => {
      if (answers.length === 0) complaints.push(`dialog: ${dialog.message()}`);
      await dialog.accept(answers.shift());
    });
    await steps(page, answers);
    check(complaints.length === 0, complaints.join("\n"));
  } finally {
    await browser.close();
  }
}
