// SPDX-License-Identifier: Apache-2.0
// Opens a flame graph of the lock scenario in a browser and uses it as a reader does: hover, zoom, search.
//
//   node flame.mjs FILE.svg

import { pathToFileURL } from "node:url";
import { check, inBrowser } from "./browser.mjs";

const [svg] = process.argv.slice(2);
const LOCK = "take_registry_lock";
/** The colour of boxes that match a search. */
const FOUND = "rgb(230,0,230)";

/** The boxes that are shown: title, left edge and width in percent, fill. */
const boxes = (page) =>
  page.evaluate(() =>
    [...document.getElementById("frames").children]
      .filter((box) => !box.classList.contains("hide"))
      .map((box) => {
        const rect = box.querySelector("rect");
        return {
          title: box.querySelector("title").textContent,
          label: box.querySelector("text").textContent,
          width: parseFloat(rect.getAttribute("width")),
          fill: rect.getAttribute("fill"),
        };
      }),
  );

const text = (page, id) => page.evaluate((id) => document.getElementById(id).textContent, id);

const box = (page, title) => page.locator("#frames > *", { hasText: title }).first();

/** The script shows a box in the whole width once it has run. */
const settled = (page) => page.waitForFunction(() => document.getElementById("frames").getAttribute("width") !== "1180");

async function looksRight(page) {
  const shown = await boxes(page);
  const [lock, state] = [LOCK, "[blocked:lock]"].map((name) => shown.find((one) => one.title.startsWith(name)));
  check(lock && state, "the wait for the lock is drawn");
  check(/ \(\d[\d.,]* (ns|µs|ms|s), \d+\.\d\d %\)$/.test(lock.title), `a title says time and share: ${lock.title}`);
  check(shown.some((one) => one.title.startsWith("[user]")), "running is drawn in the same picture");
  const hot = shown.find((one) => one.title.startsWith("[user]")).fill;
  check(hot !== state.fill, "running and waiting have different colours");
  const whole = shown.find((one) => one.title.startsWith("3 threads"));
  check(whole?.width === 100, "everything stands on one box");
  check(whole.label.startsWith("3 threads"), `boxes have labels: ${whole.label}`);
}

async function tellsOnHover(page) {
  await box(page, LOCK).hover();
  check((await text(page, "details")).includes(LOCK), "the box under the pointer is named below");
}

async function zooms(page) {
  const before = await boxes(page);
  await box(page, LOCK).click();
  const zoomed = await boxes(page);
  const lock = zoomed.find((one) => one.title.startsWith(LOCK));
  check(lock.width === 100, `a box that is clicked fills the width: ${lock.width} %`);
  check(zoomed.length < before.length, "what is beside it is gone");
  check(lock.label.startsWith(LOCK), `its label has room now: ${lock.label}`);
  await page.locator("#unzoom").click();
  check((await boxes(page)).length === before.length, "everything comes back");
}

async function searches(page, answers) {
  const share = /, (\d+\.\d)\d %\)$/.exec((await boxes(page)).find((one) => one.title.startsWith(LOCK)).title)[1];
  answers.push(`^${LOCK}`);
  await page.locator("#search").click();
  const matched = /^Matched: ([\d.]+)%$/.exec(await text(page, "matched"));
  check(matched, `the search says how much it found: ${await text(page, "matched")}`);
  check(Math.abs(matched[1] - share) <= 0.2, `which is the box's share: ${matched[1]} and ${share}`);
  const marked = (await boxes(page)).filter((one) => one.fill === FOUND);
  check(marked.length > 0 && marked.every((one) => one.title.startsWith(LOCK)), "what was found is marked");
  await page.locator("#search").click();
  check((await boxes(page)).every((one) => one.fill !== FOUND), "and unmarked");
}

await inBrowser(async (page, answers) => {
  await page.goto(pathToFileURL(svg).href);
  await settled(page);
  await looksRight(page);
  await tellsOnHover(page);
  await zooms(page);
  await searches(page, answers);
});
