// SPDX-License-Identifier: Apache-2.0
// Zoom into a frame by a click, out of it by "reset"; "search" marks frames by a regular expression. The picture is as
// wide as its window, and the fragment of its address keeps the frame and the search.
(function () {
  "use strict";
  var left = 10, base = 1180, all = base, character = 6.7, rim = 0.0005;
  var svg = document.documentElement, message = document.getElementById("message");
  var frames = Array.prototype.map.call(document.querySelectorAll("#frames > g"), function (group, at) {
    var rect = group.querySelector("rect"), title = group.querySelector("title").textContent;
    var letters = Number(group.getAttribute("data-letters"));
    return {
      at: at, group: group, rect: rect, text: group.querySelector("text"), title: title,
      name: Array.from(title).slice(0, letters),
      x: parseFloat(rect.getAttribute("x")) - left, width: parseFloat(rect.getAttribute("width"))
    };
  });
  var whole = { at: -1, x: 0, width: base }, zoomed = whole, wanted = "", found = " ";

  function place(frame, x, width) {
    frame.rect.setAttribute("x", x);
    frame.rect.setAttribute("width", width);
    frame.text.setAttribute("x", x + 3);
    var letters = Math.floor((width - 6) / character), name = frame.name;
    frame.text.textContent =
      letters < 3 ? "" : name.length <= letters ? name.join("") : name.slice(0, letters - 1).join("") + "…";
  }

  // What stands on the frame, and what it stands on.
  function show(frame) {
    var scale = all / frame.width, end = frame.x + frame.width;
    zoomed = frame;
    frames.forEach(function (each) {
      var isSeen = each.x < end - rim && each.x + each.width > frame.x + rim;
      each.group.style.display = isSeen ? "" : "none";
      each.group.classList.toggle("base", isSeen && frame !== whole && each.width > frame.width + rim);
      if (!isSeen) return;
      var start = Math.max(each.x, frame.x), stop = Math.min(each.x + each.width, end);
      place(each, left + (start - frame.x) * scale, (stop - start) * scale);
    });
  }

  function say(text) { message.textContent = text; }

  // The share of the picture that has a hit in its stack.
  function share(hits) {
    var sum = 0, end = 0;
    hits.sort(function (one, other) { return one.x - other.x; });
    hits.forEach(function (hit) {
      var stop = hit.x + hit.width;
      if (stop > end) { sum += stop - Math.max(hit.x, end); end = stop; }
    });
    return (100 * sum / base).toFixed(1) + " %";
  }

  // Letters of both cases match where the expression has none of the upper case.
  function search(expression) {
    var pattern = null, hits;
    try {
      if (expression) pattern = new RegExp(expression, /[A-Z]/.test(expression.replace(/\\./g, "")) ? "" : "i");
    } catch (error) { return say("not a regular expression: " + expression); }
    hits = frames.filter(function (frame) { return !!pattern && pattern.test(frame.name.join("")); });
    frames.forEach(function (frame) { frame.group.classList.remove("hit"); });
    hits.forEach(function (frame) { frame.group.classList.add("hit"); });
    wanted = pattern ? expression : "";
    found = pattern ? hits.length + " frames match " + expression + ", in " + share(hits) : " ";
    say(found);
  }

  function keep() {
    var parts = [];
    if (zoomed !== whole) parts.push("frame=" + zoomed.at);
    if (wanted) parts.push("search=" + encodeURIComponent(wanted));
    try { history.replaceState(null, "", "#" + parts.join("&")); } catch (error) { /* the address is not ours */ }
  }

  function restore() {
    var parts = new URLSearchParams(location.hash.slice(1));
    zoomed = frames[parts.has("frame") ? Number(parts.get("frame")) : -1] || whole;
    search(parts.get("search") || "");
  }

  function fit() {
    svg.removeAttribute("viewBox");
    svg.setAttribute("width", "100%");
    all = Math.max(svg.getBoundingClientRect().width - 2 * left, 300);
    document.getElementById("search").setAttribute("x", left + all - 150);
    document.getElementById("reset").setAttribute("x", left + all - 80);
    show(zoomed);
  }

  function ask() {
    search(window.prompt("Mark the frames whose names match this regular expression:", wanted) || "");
    keep();
  }

  frames.forEach(function (frame) {
    frame.group.addEventListener("click", function () { show(frame); keep(); });
    frame.group.addEventListener("mouseover", function () { say(frame.title); });
    frame.group.addEventListener("mouseout", function () { say(found); });
  });
  document.getElementById("reset").addEventListener("click", function () { show(whole); search(""); keep(); });
  document.getElementById("search").addEventListener("click", ask);
  window.addEventListener("keydown", function (event) {
    if (event.key !== "F3" && !(event.key === "f" && (event.ctrlKey || event.metaKey))) return;
    event.preventDefault();
    ask();
  });
  window.addEventListener("resize", fit);
  restore();
  fit();
})();
