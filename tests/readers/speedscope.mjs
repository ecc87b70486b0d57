// SPDX-License-Identifier: Apache-2.0
// Opens an export of the lock scenario in speedscope and looks for the wait for the lock.
//
//   node speedscope.mjs FILE.json PICTURE.png

import { readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join, resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { check, inBrowser } from "./browser.mjs";

const [file, picture] = process.argv.slice(2);
const release = join(dirname(createRequire(import.meta.url).resolve("speedscope/package.json")), "dist/release");
const profile = JSON.parse(readFileSync(file, "utf8"));
const wall = (name) => profile.profiles.find((one) => one.name.startsWith(name)).endValue;

/** Opens the page as speedscope's own command does: with a script that hands the profile over. */
async function open(page) {
  const script = `${file}.js`;
  const encoded = readFileSync(file).toString("base64");
  writeFileSync(script, `speedscope.loadFileFromBase64("lock.speedscope.json", "${encoded}")`);
  await page.goto(`${pathToFileURL(join(release, "index.html")).href}#localProfilePath=${resolve(script)}`);
}

await inBrowser(async (page) => {
  await open(page);
  await page.getByText("(1/3)").first().waitFor();
  check(wall("engine") > 0 && wall("housekeeper") > 0, "threads are profiles");
  const shown = new Set();
  for (const _ of profile.profiles) {
    // 3: the table of functions; n: the next profile.
    await page.keyboard.press("3");
    await page.getByText("Symbol Name").first().waitFor();
    const body = await page.locator("body").innerText();
    ["[blocked:lock]", "[user]", "[blocked:sleep]"].filter((name) => body.includes(name)).forEach((name) => shown.add(name));
    if (body.includes("engine")) await page.screenshot({ path: picture });
    await page.keyboard.press("n");
  }
  check(shown.size === 3, `the states are functions of the table: ${[...shown]}`);
});
