// SPDX-License-Identifier: Apache-2.0
// Opens the page of a recording in a browser and uses it as a reader does: drags, zooms, filters, searches, follows a
// link. Compares its numbers with what `report --json`, `stalls --json` and folded stacks say of the same time.
//
//   node page.mjs FILE.html REPORT.json STALLS.json TAIL.json FOLDED_OF_A_SECOND FROM_S PICTURE.png

import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";
import { check, inBrowser } from "./browser.mjs";

const [html, reportFile, stallsFile, tailFile, secondFile, fromSecond, picture] = process.argv.slice(2);
const LOCK = "take_registry_lock";
const URL = pathToFileURL(html).href;

/** Times since the epoch are not exact as numbers of JavaScript. */
const parsed = (text) => JSON.parse(text.replace(/("(?:start|end)_ns":)(\d+)/g, '$1"$2"'));
const report = parsed(readFileSync(reportFile, "utf8"));
const started = BigInt(report.recording.start_ns);
const stalls = readFileSync(stallsFile, "utf8")
  .trim()
  .split("\n")
  .map(parsed)
  .map((stall) => ({
    ...stall,
    from: Number(BigInt(stall.start_ns) - started),
    to: Number(BigInt(stall.end_ns) - started),
    functions: [...(stall.user_stack ?? []), ...(stall.kernel_stack ?? [])].map(
      (frame) => frame.symbol ?? "",
    ),
  }));
const late = stalls.filter((stall) => !stall.voluntary);

/** Nanoseconds by the last frame of folded stacks: `blocked:lock`, `[unaccounted]`. */
function sumsOf(file, picked = () => true) {
  const sums = new Map();
  for (const line of readFileSync(file, "utf8").trim().split("\n").filter(picked)) {
    const [stack, ns] = [line.slice(0, line.lastIndexOf(" ")), Number(line.slice(line.lastIndexOf(" ") + 1))];
    const state = stack.slice(stack.lastIndexOf(";") + 1).replace(/^\[|\]$/g, "");
    sums.set(state, (sums.get(state) ?? 0) + ns);
  }
  return sums;
}

function sumsOfReport() {
  const sums = new Map();
  const add = (name, ns) => sums.set(name, (sums.get(name) ?? 0) + ns);
  for (const { states, unaccounted_ns: unaccounted } of report.threads) {
    for (const [name, ns] of Object.entries(states)) {
      if (name === "blocked")
        for (const [reason, blocked] of Object.entries(ns)) add(`blocked:${reason}`, blocked);
      else add(name.replace("fault_", "fault:"), ns ?? 0);
    }
    add("unaccounted", unaccounted);
  }
  return sums;
}

const ready = (page) => page.waitForFunction(() => document.documentElement.dataset.readyMs);

/** The page draws at the next frame, and sets the fragment a little later. */
async function settled(page) {
  await page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));
}

const ledger = (page) =>
  page.evaluate(() =>
    [...document.querySelectorAll("#selected .chip")].map((chip) => [
      chip.dataset.state,
      Number(chip.dataset.ledgerNs),
    ]),
  );

const table = (page) =>
  page.evaluate(() => {
    const { count, lateNs } = document.getElementById("stall-count").dataset;
    return { count: Number(count), late: Number(lateNs) };
  });

/** A view of its own, as a link opens it. */
async function open(page, fragment) {
  await page.goto("about:blank");
  await page.goto(`${URL}#${fragment}`);
  await ready(page);
}

async function hasNumbersOf(page, expected, about) {
  const shown = new Map(await ledger(page));
  for (const [state, ns] of expected) {
    const found = shown.get(state) ?? 0;
    // The page adds up floats, folded stacks whole nanoseconds of each stack.
    check(Math.abs(found - ns) <= 50, `${about}: ${state} is ${found} ns on the page, ${ns} ns elsewhere`);
  }
}

async function hasTheReport(page) {
  await open(page, "idle");
  await hasNumbersOf(page, sumsOfReport(), "the whole recording");
  const { count, late: lateNs } = await table(page);
  const sum = late.reduce((all, stall) => all + stall.late_ns, 0);
  check(count === late.length, `${count} stalls on the page, ${late.length} in JSON`);
  check(Math.abs(lateNs - sum) <= late.length, `${lateNs} ns late on the page, ${sum} ns in JSON`);
  const titles = await page.locator(".finding .title").allTextContents();
  check(
    report.findings.slice(0, 2).every((finding, at) => titles[at] === finding.title),
    `findings: ${titles}`,
  );
}

/** The fragment that selects a whole second. */
function wholeSecond() {
  const offset = (second) => BigInt(second) * 1_000_000_000n - started;
  return `idle&t=${offset(fromSecond)}-${offset(Number(fromSecond) + 1)}`;
}

async function hasASecond(page) {
  await open(page, wholeSecond());
  await hasNumbersOf(page, sumsOf(secondFile), "one second");
  check((await page.locator("#selected").getAttribute("data-exact")) === "true", "a whole second is exact");
}

/** Drags over the strips, from one part of their width to another. */
async function drag(page, from, to) {
  const box = await page.locator("#timeline canvas.strips").boundingBox();
  const x = (part) => box.x + 330 + part * (box.width - 330);
  await page.mouse.move(x(from), box.y + 15);
  await page.mouse.down();
  await page.mouse.move(x((from + to) / 2), box.y + 15);
  await page.mouse.move(x(to), box.y + 20);
  await page.mouse.up();
  await settled(page);
}

async function followsADrag(page) {
  await open(page, "idle");
  await drag(page, 0.4, 0.5);
  const found = await page
    .waitForFunction(() => /t=(\d+)-(\d+)/.exec(location.hash))
    .then((handle) => handle.jsonValue());
  const [from, to] = [Number(found[1]), Number(found[2])];
  const duration = report.recording.duration_ns;
  check(
    Math.abs(from / duration - 0.4) < 0.02 && Math.abs(to / duration - 0.5) < 0.02,
    `a drag selects its time: ${found[0]}`,
  );
  // The fragment has whole nanoseconds, the page fractions: a stall at the edge may be on either side.
  const during = late.filter((stall) => stall.from < to && stall.to > from).length;
  const { count } = await table(page);
  check(Math.abs(count - during) <= 1, `${count} stalls in the table, ${during} in JSON`);
  const sum = (await ledger(page)).reduce((all, [, ns]) => all + ns, 0);
  const lived = report.threads.reduce((all, thread) => {
    const [start, end] = [Number(BigInt(thread.start_ns) - started), Number(BigInt(thread.end_ns) - started)];
    return all + Math.max(0, Math.min(end, to) - Math.max(start, from));
  }, 0);
  check(
    Math.abs(sum / lived - 1) < 0.02,
    `the states of a part of a second add up to it: ${sum} and ${lived} ns`,
  );
  const total = Number(await page.locator("#flame-note").getAttribute("data-total-ns"));
  check(Math.abs(total / sum - 1) < 0.001, `the flame graph is of the same time: ${total} and ${sum} ns`);
  await page.keyboard.press("z");
  await page.waitForFunction(() => /z=/.test(location.hash));
  await page.keyboard.press("Escape");
  await page.waitForFunction(() => !/[tz]=/.test(location.hash));
}

async function filters(page) {
  await open(page, "idle");
  await page.keyboard.press("/");
  await page.keyboard.type(LOCK);
  await settled(page);
  const expected = late.filter((stall) => stall.functions.some((name) => name.includes(LOCK))).length;
  const { count } = await table(page);
  check(count === expected && count > 0, `${count} stalls in ${LOCK}, ${expected} in JSON`);
  await page.locator("#filter").fill("");
  await page.locator('.chip[data-state="blocked:lock"]').click();
  await settled(page);
  const locks = late.filter((stall) => stall.reason === "lock").length;
  check((await table(page)).count === locks, `a click on a state selects its stalls: ${locks}`);
}

/**
 * In one second: the samples of each second divide its running time on the page, those of the whole recording divide
 * all of it in folded stacks of the whole. With a sample or two a second these differ by a tenth.
 */
async function searches(page) {
  await open(page, wholeSecond());
  await page.keyboard.press("f");
  await page.keyboard.type(LOCK);
  await settled(page);
  const found = Number(await page.locator("#flame-note").getAttribute("data-found-ns"));
  const expected = [...sumsOf(secondFile, (line) => line.includes(LOCK)).values()].reduce((a, b) => a + b, 0);
  // Boxes below a pixel's width are not drawn, and not found.
  check(
    Math.abs(found / expected - 1) < 0.02,
    `a search finds ${found} ns, folded stacks have ${expected} ns`,
  );
  await page.keyboard.press("Escape");
  await page.locator("#reverse").click();
  await settled(page);
  const total = Number(await page.locator("#flame-note").getAttribute("data-total-ns"));
  check(
    Math.abs(total / [...sumsOf(secondFile).values()].reduce((a, b) => a + b, 0) - 1) < 1e-6,
    `reversed, the sum is the same: ${total}`,
  );
}

/** Kinds and their percentiles are those of `tail --json`; the link of the slowest span selects it and its stalls. */
async function followsASpan(page) {
  await open(page, "");
  const { kinds } = parsed(readFileSync(tailFile, "utf8"));
  const rows = await page.locator("#spans [data-kind]").evaluateAll((all) => all.map((row) => row.dataset.kind));
  check(
    rows.join() === kinds.map((kind) => `${kind.kind} of ${kind.process}`).join() && rows.length > 0,
    `kinds: ${rows}`,
  );
  const counts = await page
    .locator("#spans .kind:not(.titles) .number:nth-child(2)")
    .evaluateAll((all) => all.map((cell) => Number(cell.textContent.replace(/,/g, ""))));
  check(counts.join() === kinds.map((kind) => kind.count).join(), `counts of spans: ${counts}`);
  const slowest = kinds[0].exemplars[0];
  await page.locator("#spans [data-span]").first().click();
  const found = await page
    .waitForFunction(() => /t=(\d+)-(\d+)/.exec(location.hash))
    .then((handle) => handle.jsonValue());
  const from = Number(BigInt(slowest.start_ns) - started);
  check(
    Math.abs(Number(found[1]) - from) <= 2 && Math.abs(found[2] - found[1] - slowest.duration_ns) <= 2,
    `the link selects the span: ${found[0]}, ${from} + ${slowest.duration_ns}`,
  );
  const shown = await page
    .locator(".row")
    .evaluateAll((all) => all.map((row) => Number(row.dataset.stall)));
  check(
    slowest.stalls.some((stall) => shown.includes(stall)),
    `the stalls of the span are in the table: ${slowest.stalls} in ${shown}`,
  );
}

async function followsAFinding(page) {
  await open(page, "");
  // Which rule it is depends on where the threads ran: on one CPU the engine waits only while the holder sleeps.
  const at = report.findings.findIndex((finding) => finding.title.includes("waited for a lock"));
  check(at >= 0, `a finding about the lock: ${report.findings.map((finding) => finding.title)}`);
  if (await page.locator("#more-findings").count()) await page.locator("#more-findings").click();
  await page.locator(`[data-finding="${at}"]`).click();
  await page.waitForFunction((rank) => location.hash.includes(`f=${rank}`), at);
  const { count } = await table(page);
  check(
    count === report.findings[at].stalls.length,
    `${count} stalls of the finding, ${report.findings[at].stalls.length} in JSON`,
  );
  await page.locator(".row").first().click();
  await page.waitForFunction(() => /id=\d+/.test(location.hash));
  const shown = await page.locator("#detail").innerText();
  check(
    shown.includes(LOCK) && shown.includes("woken by"),
    `the stall has its stack and its waker: ${shown.slice(0, 200)}`,
  );
  const link = await page.evaluate(() => location.hash.slice(1));
  await open(page, link);
  check(
    (await page.locator("#detail").innerText()) === shown && (await table(page)).count === count,
    "the link opens the same view",
  );
  // The link of an exemplar.
  const [, id] = /id=(\d+)/.exec(link);
  await open(page, `stall=${id}`);
  check((await page.locator("#detail").innerText()) === shown, "the stall of an exemplar is open");
  await page.waitForFunction(() => /z=/.test(location.hash));
  const zoomed = await page.evaluate(() => location.hash);
  check(zoomed.includes(`id=${id}`), `its time is shown: ${zoomed}`);
  await open(page, "stall=4294967295");
  const missing = await page.locator("#detail").innerText();
  check(missing.includes("stall 4294967295 is not on this page"), `a stall of another recording: ${missing}`);
  await open(page, link);
  await page.screenshot({ path: picture });
}

async function hasKeys(page) {
  await open(page, "");
  await page.keyboard.press("?");
  check(await page.locator("#keys").isVisible(), "? shows the keys");
  await page.keyboard.press("Escape");
  const before = await page.evaluate(() => document.documentElement.dataset.theme);
  await page.keyboard.press("t");
  check(
    (await page.evaluate(() => document.documentElement.dataset.theme)) !== before,
    "t changes light and dark",
  );
}

await inBrowser(async (page) => {
  for (const step of [
    hasTheReport,
    hasASecond,
    followsADrag,
    filters,
    searches,
    followsASpan,
    followsAFinding,
    hasKeys,
  ])
    await step(page);
});
