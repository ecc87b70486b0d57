// SPDX-License-Identifier: Apache-2.0
// Opens a differential flame graph of two lock scenarios in a browser and uses it as a reader does: look, zoom, search.
//
//   node diff.mjs FILE.svg DIFF.json
//
// DIFF.json is the output of `wallprof diff --json` for the same recordings.

import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";
import { box, boxes, message, whole } from "./boxes.mjs";
import { check, inBrowser } from "./browser.mjs";

const [svg, json] = process.argv.slice(2);
const said = JSON.parse(readFileSync(json, "utf8"));
const LOCK = "take_registry_lock";
const GREY = "#dedbd5";
const isRed = (fill) => /^#[d-f][0-9a-f]/.test(fill) && fill !== GREY;

async function looksRight(page) {
  const shown = await boxes(page);
  const lock = shown.find((one) => one.name === LOCK);
  check(lock && shown.some((one) => one.name === "[blocked:lock]"), "the wait for the lock is drawn");
  check(/: \d[\d.,]* (ns|µs|ms|s) per second in B, /.test(lock.title), `a title says the rate: ${lock.title}`);
  for (const one of shown) {
    const isNoise = one.title.endsWith("within noise");
    check(isNoise === (one.fill === GREY), `what is within noise is grey, and nothing else: ${one.title} ${one.fill}`);
  }
  const leaf = (stack) => stack.thread === "engine" && stack.stack.includes(LOCK) && stack.stack.at(-1) === "[blocked:lock]";
  const news = said.stacks.find(leaf);
  const width = shown.filter((one) => one.name === "[blocked:lock]").map((one) => one.width);
  const all = shown.find((one) => one.name === "all threads in both");
  check(all?.width === whole(shown), "everything stands on one box");
  const drawn = said.states.filter((state) => state.state !== "running").reduce((sum, state) => sum + state.b_ns, 0);
  check(width.some((one) => Math.abs(one / all.width - news.b_ns / drawn) < 0.002), `a box is as wide as its time: ${width}`);
  if (news.news) check(shown.some((one) => one.name === "[blocked:lock]" && isRed(one.fill)), "longer is red");
}

async function zooms(page) {
  const before = await boxes(page);
  await box(page, LOCK).click();
  const zoomed = await boxes(page);
  const lock = zoomed.find((one) => one.name === LOCK);
  check(Math.abs(lock.width - whole(before)) < 0.01, `a box that is clicked fills the width: ${lock.width}`);
  check(zoomed.length < before.length, "what is beside it is gone");
  check(lock.label === LOCK, `its label has room now: ${lock.label}`);
  check(zoomed.every((one) => one.x >= 9.9 && one.x + one.width <= 10.1 + whole(before)), "nothing is drawn outside");
  await page.locator("#reset").click();
  const after = await boxes(page);
  check(after.length === before.length, "everything comes back");
  check(after.every((one, at) => Math.abs(one.width - before[at].width) < 0.01), "as it was");
}

async function searches(page, answers) {
  answers.push(`^${LOCK}$`);
  await page.locator("#search").click();
  const hits = (await boxes(page)).filter((one) => one.isHit);
  check(hits.length > 0 && hits.every((one) => one.name === LOCK), "what was found is marked");
  const share = ((100 * hits.reduce((sum, one) => sum + one.width, 0)) / whole(await boxes(page))).toFixed(1);
  check((await message(page)) === `${hits.length} frames match ^${LOCK}$, in ${share} %`, `and counted: ${await message(page)}`);
  answers.push("(");
  await page.locator("#search").click();
  check((await message(page)).startsWith("not a regular expression"), "a wrong expression is said to be one");
  await page.locator("#reset").click();
  check((await boxes(page)).every((one) => !one.isHit) && (await message(page)) === "", "and unmarked");
}

await inBrowser(async (page, answers) => {
  await page.goto(pathToFileURL(svg).href);
  await looksRight(page);
  await zooms(page);
  await searches(page, answers);
});
