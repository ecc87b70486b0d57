// Opens a flame graph whose names were chosen to do harm: nothing of them runs, and nothing becomes part of the document.
//
//   node hostile.mjs FILE.svg NAME

import { pathToFileURL } from "node:url";
import { check, inBrowser } from "./browser.mjs";

const [svg, name] = process.argv.slice(2);

await inBrowser(async (page) => {
  await page.goto(pathToFileURL(svg).href);
  await page.waitForFunction(() => document.getElementById("frames").getAttribute("width") !== "1180");
  const found = await page.evaluate(() => ({
    scripts: document.getElementsByTagName("script").length,
    elements: [...new Set([...document.querySelectorAll("*")].map((element) => element.localName))],
    handlers: [...document.querySelectorAll("*")].flatMap((element) =>
      element.getAttributeNames().filter((attribute) => attribute.startsWith("on")),
    ),
    titles: [...document.querySelectorAll("#frames title")].map((title) => title.textContent),
  }));
  check(found.scripts === 1, `${found.scripts} scripts`);
  check(found.handlers.join() === "onload", `handlers: ${found.handlers}`);
  const known = ["svg", "defs", "linearGradient", "stop", "style", "script", "rect", "text", "g", "title"];
  const strange = found.elements.filter((element) => !known.includes(element));
  check(strange.length === 0, `elements: ${strange}`);
  check(found.titles.some((title) => title.startsWith(`${name} (`)), `the name is shown: ${found.titles.slice(0, 5)}`);
});
