// SPDX-License-Identifier: Apache-2.0
// Opens a flame graph of the lock scenario in a browser and uses it as a reader does: hover, zoom, search.
//
//   node flame.mjs FILE.svg

import { pathToFileURL } from "node:url";
import { box, boxes, message, whole } from "./boxes.mjs";
import { check, inBrowser } from "./browser.mjs";

const [svg] = process.argv.slice(2);
const LOCK = "take_registry_lock";

/** A page hears of its new size when the next frame is drawn: until then its boxes have the old widths. */
const nextFrame = (page) =>
  page.evaluate(() => new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn))));

async function looksRight(page) {
  const shown = await boxes(page);
  const [lock, state] = [LOCK, "[blocked:lock]"].map((name) => shown.find((one) => one.name === name));
  check(lock && state, "the wait for the lock is drawn");
  check(/ \(\d[\d.,]* (ns|µs|ms|s), \d+\.\d\d %\)$/.test(lock.title), `a title says time and share: ${lock.title}`);
  const user = shown.find((one) => one.name === "[user]");
  check(user, "running is drawn in the same picture");
  check(user.fill !== state.fill, "running and waiting have different colours");
  const all = shown.find((one) => one.name === "3 threads");
  check(all?.width === whole(shown), "everything stands on one box");
  check(all.label.startsWith("3 threads"), `boxes have labels: ${all.label}`);
  const share = Number(/, (\d+\.\d\d) %\)$/.exec(lock.title)[1]);
  check(Math.abs((100 * lock.width) / all.width - share) < 0.02, `a box is as wide as its share: ${lock.width}`);
  for (const [width, height] of [[700, 500], [1400, 900]]) {
    await page.setViewportSize({ width, height });
    await nextFrame(page);
    const fits = (await boxes(page)).every((one) => one.x + one.width <= width);
    check(fits && whole(await boxes(page)) > width - 60, `it is as wide as a window of ${width}`);
  }
}

async function tellsOnHover(page) {
  await box(page, LOCK).hover();
  check((await message(page)).startsWith(`${LOCK} (`), "the box under the pointer is named");
}

async function zooms(page) {
  const before = await boxes(page);
  await box(page, LOCK).click();
  const zoomed = await boxes(page);
  const lock = zoomed.find((one) => one.name === LOCK);
  check(Math.abs(lock.width - whole(before)) < 0.01, `a box that is clicked fills the width: ${lock.width}`);
  check(zoomed.length < before.length, "what is beside it is gone");
  check(lock.label === LOCK, `its label has room now: ${lock.label}`);
  await page.reload();
  check((await boxes(page)).length === zoomed.length, "the address keeps it");
  await page.locator("#reset").click();
  check((await boxes(page)).length === before.length, "everything comes back");
}

async function searches(page, answers) {
  const share = /, (\d+\.\d\d) %\)$/.exec((await boxes(page)).find((one) => one.name === LOCK).title)[1];
  for (const pattern of [`^${LOCK}`, `^${LOCK.slice(0, -4)}`]) {
    answers.push(pattern);
    await page.locator("#search").click();
    const said = /^\d+ frames match (.*), in ([\d.]+) %$/.exec(await message(page));
    check(said?.[1] === pattern, `the search says how much it found: ${await message(page)}`);
    check(said[2] - share >= -0.2 && said[2] - share <= 1, `which is the box's share: ${said[2]} and ${share}`);
    const hits = (await boxes(page)).filter((one) => one.isHit);
    check(hits.length > 0 && hits.every((one) => one.name === LOCK), "what was found is marked");
  }
  answers.push(LOCK.toUpperCase());
  await page.keyboard.press("F3");
  check((await message(page)).startsWith("0 frames match"), `upper case matches itself alone: ${await message(page)}`);
  answers.push("");
  await page.locator("#search").click();
  check((await boxes(page)).every((one) => !one.isHit), "and unmarked");
}

await inBrowser(async (page, answers) => {
  await page.goto(pathToFileURL(svg).href);
  await looksRight(page);
  await tellsOnHover(page);
  await zooms(page);
  await searches(page, answers);
});
