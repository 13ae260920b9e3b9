// Draws the trials of a tuning job: the best value so far, and a line for each trial across its parameters.
"use strict";
(() => {
  const WIDTH = 600, HEIGHT = 270, EDGE = 52;
  const down = HEIGHT - EDGE;

  function add(parent, name, attributes, text = "") {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.textContent = text;
    parent.append(element);
    return element;
  }

  function begin(id, label) {
    const place = document.getElementById(id);
    place.replaceChildren();
    return add(place, "svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label });
  }

  const shorten = (text) => (text.length > 14 ? `${text.slice(0, 13)}…` : text);

  // Where values lie between 0 and 1; words lie in the order of their names.
  function makeScale(values) {
    const numbers = values.map(Number);
    if (values.length && numbers.every(Number.isFinite)) {
      const low = Math.min(...numbers), high = Math.max(...numbers);
      return { low: String(low), high: String(high), place: (one) => (high > low ? (Number(one) - low) / (high - low) : 0.5) };
    }
    const words = [...new Set(values.map(String))].sort();
    const last = Math.max(1, words.length - 1);
    return { low: words[0] ?? "", high: words.at(-1) ?? "", place: (one) => words.indexOf(String(one)) / last };
  }

  const height = (share) => down - share * (down - EDGE);

  function drawBest(table) {
    const svg = begin("best-so-far", `The best ${table.metric} so far`);
    const rows = [...table.rows].sort((a, b) => a.number - b.number);
    const scale = makeScale(rows.map((row) => row.value));
    const across = (index) => EDGE + (index / Math.max(1, rows.length - 1)) * (WIDTH - 2 * EDGE);
    for (const share of [0, 0.5, 1]) add(svg, "line", { class: "grid", x1: EDGE, x2: WIDTH - EDGE, y1: height(share), y2: height(share) });
    rows.forEach((row, index) => add(svg, "circle", { cx: across(index), cy: height(scale.place(row.value)), r: 3 }));
    add(svg, "path", { class: "best", d: rows.map((row, index) => `${index ? "L" : "M"}${across(index)},${height(scale.place(row.best))}`).join("") });
    add(svg, "text", { x: EDGE, y: EDGE - 8 }, `${table.metric} ${shorten(scale.high)}`);
    add(svg, "text", { x: EDGE, y: down + 22 }, shorten(scale.low));
    add(svg, "text", { x: EDGE, y: HEIGHT - 6 }, `trial ${rows[0].number}`);
    add(svg, "text", { x: WIDTH - EDGE, y: HEIGHT - 6, "text-anchor": "end" }, `trial ${rows.at(-1).number}`);
  }

  function drawParallel(table) {
    const svg = begin("parallel", `Each trial as a line across its parameters and ${table.metric}`);
    const axes = [...table.parameters.map((name) => [name, (row) => row.parameters[name]]), [table.metric, (row) => row.value]]
      .map(([name, read]) => ({ name, read, scale: makeScale(table.rows.map(read).filter((one) => one !== undefined)) }));
    const across = (index) => EDGE + (index / Math.max(1, axes.length - 1)) * (WIDTH - 2 * EDGE);
    // The best trial is drawn last, above the others.
    [...table.rows].reverse().forEach((row, index) => {
      const points = axes.map((axis, place) => [place, axis.read(row), axis]).filter(([, value]) => value !== undefined);
      const path = points.map(([place, value, axis], at) => `${at ? "L" : "M"}${across(place)},${height(axis.scale.place(value))}`).join("");
      add(svg, "path", { class: index === table.rows.length - 1 ? "first" : "trial", d: path });
    });
    axes.forEach((axis, place) => {
      const anchor = place === 0 ? "start" : place === axes.length - 1 ? "end" : "middle";
      const x = place === 0 ? 0 : place === axes.length - 1 ? WIDTH : across(place);
      add(svg, "line", { x1: across(place), x2: across(place), y1: EDGE, y2: down });
      add(svg, "text", { x, y: 18, "text-anchor": anchor }, shorten(axis.name));
      add(svg, "text", { x, y: EDGE - 8, "text-anchor": anchor }, shorten(axis.scale.high));
      add(svg, "text", { x, y: down + 22, "text-anchor": anchor }, shorten(axis.scale.low));
    });
  }

  function draw() {
    const table = JSON.parse(document.getElementById("trials").dataset.trials);
    if (!table.rows.length) return;
    drawBest(table);
    drawParallel(table);
  }

  document.addEventListener("part-updated", draw);
  draw();
})();
