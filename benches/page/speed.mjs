// SPDX-License-Identifier: Apache-2.0
// How long a page takes to open, and to draw again while a drag selects: milliseconds by the page's own clock.
//
//   node speed.mjs FILE.html

import { pathToFileURL } from "node:url";
import { inBrowser } from "./browser.mjs";

const url = pathToFileURL(process.argv[2]).href;
const GUTTER = 330;

/** Median and largest. */
function summary(times) {
  times.sort((a, b) => a - b);
  return `median ${times[times.length >> 1]} ms, at most ${times[times.length - 1]} ms`;
}

await inBrowser(async (page) => {
  const data = (name) => page.evaluate((key) => Number(document.documentElement.dataset[key]), name);
  const opened = [];
  for (let time = 0; time < 3; time += 1) {
    await page.goto("about:blank");
    await page.goto(url);
    await page.waitForFunction(() => document.documentElement.dataset.readyMs);
    opened.push(await data("readyMs"));
  }
  console.log(`opens and draws: ${summary(opened)}`);
  const box = await page.locator("#timeline canvas.strips").boundingBox();
  const drawn = [];
  await page.mouse.move(box.x + GUTTER + 10, box.y + 20);
  await page.mouse.down();
  for (let x = GUTTER + 30; x < box.width; x += 20) {
    await page.mouse.move(box.x + x, box.y + 20);
    await page.evaluate(
      () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))),
    );
    drawn.push(await data("updateMs"));
  }
  await page.mouse.up();
  console.log(`a drag draws again: ${summary(drawn)}`);
});
