// SPDX-License-Identifier: Apache-2.0
// Opens the pages of a watcher in a browser: `/` with its findings and stalls, `/report.html` by the link on it, and a
// stall of `/report.html` by the fragment of an exemplar.
//
//   node watch.mjs http://ADDRESS:PORT PICTURE_OF_/ PICTURE_OF_/report.html

import { check, inBrowser } from "./browser.mjs";

const [server, picture, reportPicture] = process.argv.slice(2);
const LOCK = "take_registry_lock";

const ready = (page) => page.waitForFunction(() => document.documentElement.dataset.readyMs);

async function firstPage(page) {
  const answer = await page.goto(`${server}/`);
  check(answer.status() === 200, `/ has status ${answer.status()}`);
  // On a busy machine waits for a CPU may come first.
  const findings = await page.locator("ol li").allTextContents();
  check(
    findings.some((finding) => finding.includes(LOCK) && finding.includes("housekeeper")),
    `findings: ${findings}`,
  );
  const rows = await page.locator("table tr").allTextContents();
  check(
    rows.some((row) => row.includes("engine") && row.includes("lock")),
    `stalls: ${rows}`,
  );
  await page.screenshot({ path: picture });
}

async function reportPage(page) {
  await page.getByRole("link", { name: "The last five minutes as a page" }).click();
  await ready(page);
  const titles = await page.locator(".finding .title").allTextContents();
  check(
    titles.some((title) => title.includes(LOCK)),
    `findings of the report: ${titles}`,
  );
  const count = Number(await page.locator("#stall-count").getAttribute("data-count"));
  check(count > 0, `${count} stalls`);
  await page.screenshot({ path: reportPicture });
}

/** As a click on an exemplar of Prometheus does. */
async function stallOfAnExemplar(page) {
  const metrics = await (await page.request.get(`${server}/metrics`)).text();
  const id = /stall_id="(\d+)"/.exec(metrics)?.[1];
  check(id, "no exemplar in the metrics");
  await page.goto("about:blank");
  await page.goto(`${server}/report.html#stall=${id}`);
  await ready(page);
  await page.waitForFunction(() => !document.getElementById("detail").hidden);
}

await inBrowser(async (page) => {
  await firstPage(page);
  await reportPage(page);
  await stallOfAnExemplar(page);
}, server);
