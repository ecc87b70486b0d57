// SPDX-License-Identifier: Apache-2.0
// Opens a picture with hostile names: no script in them runs, and none becomes an element of the document.
//
//   node hostile.mjs flame|diff FILE.svg NAME

import { pathToFileURL } from "node:url";
import { check, inBrowser } from "./browser.mjs";

const [kind, svg, name] = process.argv.slice(2);
const SHOWN = { flame: `${name} (`, diff: `${name}:` };

await inBrowser(async (page) => {
  await page.goto(pathToFileURL(svg).href);
  const found = await page.evaluate(() => ({
    scripts: document.getElementsByTagName("script").length,
    elements: [...new Set([...document.querySelectorAll("*")].map((element) => element.localName))],
    handlers: [...document.querySelectorAll("*")].flatMap((element) =>
      element.getAttributeNames().filter((attribute) => attribute.startsWith("on")),
    ),
    titles: [...document.querySelectorAll("#frames title")].map((title) => title.textContent),
  }));
  check(found.scripts === 1, `${found.scripts} scripts`);
  check(found.handlers.length === 0, `handlers: ${found.handlers}`);
  const known = ["svg", "style", "script", "rect", "text", "g", "title"];
  const strange = found.elements.filter((element) => !known.includes(element));
  check(strange.length === 0, `elements: ${strange}`);
  check(found.titles.some((title) => title.startsWith(SHOWN[kind])), `the name is shown: ${found.titles.slice(0, 5)}`);
});
