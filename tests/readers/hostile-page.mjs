// SPDX-License-Identifier: Apache-2.0
// Opens a page with hostile names of a thread, a mark, a function and a program's file: no script in them runs, none
// becomes an element, and all are shown.
//
//   node hostile-page.mjs FILE.html NAME MARK SYMBOL PROGRAM

import { pathToFileURL } from "node:url";
import { check, inBrowser } from "./browser.mjs";

const [html, name, mark, symbol, program] = process.argv.slice(2);

await inBrowser(async (page) => {
  await page.addInitScript(() => {
    window.violations = [];
    addEventListener("securitypolicyviolation", (event) => window.violations.push(event.violatedDirective));
  });
  await page.goto(`${pathToFileURL(html).href}#idle&all`);
  await page.waitForFunction(() => document.documentElement.dataset.readyMs);
  // A mark shows its text under the pointer. Before the click, which may select a time without the mark.
  const axis = await page.locator("canvas.axis").boundingBox();
  for (let x = 330; x < axis.width; x += 5) {
    await page.mouse.move(axis.x + x, axis.y + 15);
    if (await page.locator(".tip.shown").count()) break;
  }
  const tip = await page.evaluate(() => document.querySelector(".tip").innerText);
  await page.locator("#filter").fill(symbol.split(" ").at(-1));
  await page.locator(".row").first().click();
  await page.waitForFunction(() => !document.getElementById("detail").hidden);
  const found = await page.evaluate(() => ({
    scripts: document.getElementsByTagName("script").length,
    elements: document.querySelectorAll("img, iframe, svg, object, embed, link, base, form").length,
    handlers: [...document.querySelectorAll("*")].flatMap((element) =>
      element.getAttributeNames().filter((attribute) => attribute.startsWith("on")),
    ),
    violations: window.violations,
    ran: window.ran,
    text: document.body.innerText,
    detail: document.getElementById("detail").innerText,
  }));
  check(found.scripts === 2, `${found.scripts} scripts: the data and the page's own`);
  check(
    found.elements === 0 && found.handlers.length === 0,
    `${found.elements} elements, handlers ${found.handlers}`,
  );
  check(found.violations.length === 0, `violations of the policy: ${found.violations}`);
  check(found.ran === undefined, "no script of a name ran");
  check(found.text.includes(name), `the thread's name is shown as it is: ${found.text.slice(0, 400)}`);
  check(
    found.detail.includes(symbol) && found.detail.includes(program),
    `the function and its file are shown as they are: ${found.detail.slice(0, 1000)}`,
  );
  check(
    tip.includes(mark) && tip.length > 900,
    `the mark is shown as it is: ${tip.slice(0, 200)}`,
  );
  check(
    tip.includes("\\u{202e}") && tip.includes("\\x1b"),
    `controls are written out: ${tip.slice(0, 200)}`,
  );
});
