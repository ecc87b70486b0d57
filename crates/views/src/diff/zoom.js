// Zoom into a frame by a click, out of it by "reset"; "search" marks frames by a regular expression.
(function () {
  "use strict";
  var left = 10, all = 1180, character = 6.7;
  var frames = Array.prototype.map.call(document.querySelectorAll("#frames > g"), function (group) {
    var rect = group.querySelector("rect");
    return {
      group: group, rect: rect, text: group.querySelector("text"), name: group.getAttribute("data-name"),
      x: parseFloat(rect.getAttribute("x")), width: parseFloat(rect.getAttribute("width"))
    };
  });

  function place(frame, x, width) {
    frame.rect.setAttribute("x", x);
    frame.rect.setAttribute("width", width);
    frame.text.setAttribute("x", x + 3);
    var letters = Math.floor((width - 6) / character), name = Array.from(frame.name);
    frame.text.textContent =
      letters < 3 ? "" : name.length <= letters ? frame.name : name.slice(0, letters - 1).join("") + "…";
  }

  function show(from, to) {
    var scale = all / (to - from), rim = 0.01;
    frames.forEach(function (frame) {
      var visible = frame.x < to - rim && frame.x + frame.width > from + rim;
      frame.group.style.display = visible ? "" : "none";
      if (!visible) return;
      var start = Math.max(frame.x, from), end = Math.min(frame.x + frame.width, to);
      place(frame, left + (start - from) * scale, (end - start) * scale);
    });
  }

  function report(text) { document.getElementById("message").textContent = text; }

  function search(wanted) {
    var pattern, count = 0;
    try { pattern = wanted && new RegExp(wanted); } catch (error) { return report("not a regular expression: " + wanted); }
    frames.forEach(function (frame) {
      var hit = !!pattern && pattern.test(frame.name);
      frame.group.classList.toggle("hit", hit);
      count += hit ? 1 : 0;
    });
    report(pattern ? count + " frames match " + wanted : " ");
  }

  frames.forEach(function (frame) {
    frame.group.addEventListener("click", function () { show(frame.x, frame.x + frame.width); });
  });
  document.getElementById("reset").addEventListener("click", function () { show(left, left + all); search(""); });
  document.getElementById("search").addEventListener("click", function () {
    search(window.prompt("Mark the frames whose names match this regular expression:") || "");
  });
})();
