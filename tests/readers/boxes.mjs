// SPDX-License-Identifier: Apache-2.0
// What a picture of frames shows in a browser: flame graphs, and those of differences.

/** The boxes that are shown, in pixels. */
export const boxes = (page) =>
  page.evaluate(() =>
    [...document.querySelectorAll("#frames > g")]
      .filter((box) => box.style.display !== "none")
      .map((box) => {
        const rect = box.querySelector("rect");
        const title = box.querySelector("title").textContent;
        return {
          name: Array.from(title).slice(0, Number(box.dataset.letters)).join(""),
          title,
          label: box.querySelector("text").textContent,
          x: parseFloat(rect.getAttribute("x")),
          y: parseFloat(rect.getAttribute("y")),
          width: parseFloat(rect.getAttribute("width")),
          fill: rect.getAttribute("fill"),
          isHit: box.classList.contains("hit"),
        };
      }),
  );

/** The width of the box that all others stand on. */
export const whole = (shown) => Math.max(...shown.map((one) => one.width));

export const message = (page) => page.evaluate(() => document.getElementById("message").textContent.trim());

/** The first box whose title begins so. */
export const box = (page, title) =>
  page.locator("#frames > g").filter({ has: page.locator("title", { hasText: new RegExp(`^${title}[ :]`) }) }).first();
