"use strict";

// Timelines: the wheel stretches them around the pointer, dragging moves them, a double click shows
// all. The group is scaled along x only; texts are scaled back, and appear where they fit.
for (const frame of document.querySelectorAll("svg.timeline")) {
  const group = frame.querySelector("g");
  const left = Number(frame.dataset.left), width = Number(frame.dataset.width);
  const view = { scale: 1, shift: 0 };

  function limit() {
    view.scale = Math.min(Math.max(view.scale, 1), 1e4);
    const farthest = width * (1 - view.scale);
    view.shift = Math.min(Math.max(view.shift, farthest), 0);
  }

  function label(box) {
    const rect = box.querySelector("rect");
    const x = Number(rect.getAttribute("x")), size = Number(rect.getAttribute("width"));
    let text = box.querySelector("text");
    const full = box.dataset.label;
    if (!text && size * view.scale >= 7 * full.length + 4) {
      text = document.createElementNS(frame.namespaceURI, "text");
      text.setAttribute("x", x + size / 2);
      text.setAttribute("y", Number(rect.getAttribute("y")) + 19);
      text.setAttribute("text-anchor", "middle");
      text.setAttribute("font-size", "11");
      text.setAttribute("fill", rect.hasAttribute("fill-opacity") ? "#222" : "#fff");
      text.dataset.added = "1";
      box.append(text);
    }
    if (!text) return;
    if (size * view.scale >= 7 * full.length + 4) text.textContent = full;
    else if (text.dataset.added) text.remove();
  }

  function draw() {
    limit();
    const offset = left + view.shift - left * view.scale;
    group.setAttribute("transform", `matrix(${view.scale} 0 0 1 ${offset} 0)`);
    for (const box of group.querySelectorAll("g[data-label]")) label(box);
    for (const text of group.querySelectorAll("text")) {
      const x = Number(text.getAttribute("x"));
      text.setAttribute("transform", `matrix(${1 / view.scale} 0 0 1 ${x - x / view.scale} 0)`);
    }
    for (const path of group.querySelectorAll("path, rect"))
      path.setAttribute("vector-effect", "non-scaling-stroke");
  }

  function at(event) {
    const box = frame.getBoundingClientRect();
    const pixels = frame.viewBox.baseVal;
    return pixels.x + ((event.clientX - box.left) / box.width) * pixels.width - left;
  }

  frame.addEventListener("wheel", (event) => {
    event.preventDefault();
    const place = at(event), before = view.scale;
    view.scale *= Math.exp(-event.deltaY / 300);
    limit();
    view.shift = place - ((place - view.shift) * view.scale) / before;
    draw();
  }, { passive: false });
  let from = null;
  frame.addEventListener("pointerdown", (event) => {
    from = at(event) - view.shift;
    frame.setPointerCapture(event.pointerId);
  });
  frame.addEventListener("pointermove", (event) => {
    if (from === null) return;
    view.shift = at(event) - from;
    draw();
  });
  frame.addEventListener("pointerup", () => { from = null; });
  frame.addEventListener("dblclick", () => {
    view.scale = 1;
    view.shift = 0;
    draw();
  });
}

// Tables: only rows that contain what is typed.
for (const input of document.querySelectorAll("input[data-filters]")) {
  const rows = document.querySelectorAll(`#${input.dataset.filters} tbody > tr`);
  input.addEventListener("input", () => {
    const text = input.value.toLowerCase();
    for (const row of rows) row.hidden = !row.textContent.toLowerCase().includes(text);
  });
}
