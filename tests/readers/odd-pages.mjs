// SPDX-License-Identifier: Apache-2.0
// Opens pages of odd recordings: without stalls, without samples, of one thread, of thousands, of a killed recorder, of
// Intel PT. Each opens without an error, has the threads and the sums of `report --json`, and draws what a drag selects.
//
//   node odd-pages.mjs FOLDER NAME…      for each name FOLDER/NAME.html and FOLDER/NAME.report.json

import { readFileSync } from "node:fs";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { check, inBrowser } from "./browser.mjs";

const [folder, ...names] = process.argv.slice(2);

async function isSound(page, name) {
  const report = JSON.parse(readFileSync(join(folder, `${name}.report.json`), "utf8"));
  await page.goto("about:blank");
  await page.goto(`${pathToFileURL(join(folder, `${name}.html`)).href}#idle`);
  await page.waitForFunction(() => document.documentElement.dataset.readyMs);
  const box = await page.locator("#timeline canvas.strips").boundingBox();
  const x = (part) => box.x + 330 + part * (box.width - 330);
  const sum = () =>
    page.evaluate(() =>
      [...document.querySelectorAll("#selected .chip")].reduce((all, one) => all + Number(one.dataset.ledgerNs), 0),
    );
  const whole = await sum();
  const wall = report.threads.reduce((all, thread) => all + thread.wall_ns, 0);
  check(Math.abs(whole - wall) <= 50 + report.threads.length, `${name}: ${whole} ns on the page, ${wall} ns in JSON`);
  const about = await page.locator("#about").innerText();
  const count = report.threads.length.toLocaleString("en-US");
  check(about.includes(`${count} thread`), `${name}: ${count} threads: ${about}`);
  const warning = await page.locator(".warning").count();
  check((warning > 0) === !report.recording.ended_cleanly, `${name}: ${warning} warnings`);
  await page.mouse.move(x(0.3), box.y + 10);
  await page.mouse.down();
  await page.mouse.move(x(0.6), box.y + 10, { steps: 3 });
  await page.mouse.up();
  await page.waitForFunction(() => /t=\d+-\d+/.test(location.hash));
  const part = await sum();
  check(part > 0 && part < whole, `${name}: a part of the time has ${part} of ${whole} ns`);
  await page.keyboard.press("Escape");
  await page.waitForFunction(() => !/t=/.test(location.hash));
  const violations = await page.evaluate(() => window.violations);
  check(violations.length === 0, `${name}: violations of the policy: ${violations}`);
}

await inBrowser(async (page) => {
  await page.addInitScript(() => {
    window.violations = [];
    addEventListener("securitypolicyviolation", (event) => window.violations.push(event.violatedDirective));
  });
  for (const name of names) await isSound(page, name);
});
