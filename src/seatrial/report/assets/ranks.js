(() => {
  "use strict";
  const { ranks } = drawing.page();
  if (!ranks) return;
  const { colour, figure } = drawing;
  const holder = document.getElementById("ranks-map");
  const output = document.getElementById("ranks-readout");
  const canvas = document.createElement("canvas");
  holder.append(canvas);
  const [rows, columns] = [ranks.rows.length, ranks.columns.length];
  const GUTTER = { left: 4, bottom: 20 };
  const ROOM = { least: 2, most: 18, whole: 300 }; // heights in CSS pixels: of a row, and of all of them
  let box = null;
  let at = null;

  const rest = output.textContent;
  const shades = () => [0, 1, 2].map((level) => parse(colour(`--heat-${level}`)));

  function parse(text) {
    const probe = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    probe.fillStyle = text;
    probe.fillRect(0, 0, 1, 1);
    return [...probe.getImageData(0, 0, 1, 1).data.slice(0, 3)];
  }

  // 1 and below is the first colour, the end of the scale and beyond the last.
  function shadeOf(ratio, [low, middle, high]) {
    const place = Math.min(Math.max((ratio - 1) / (ranks.scale - 1), 0), 1) * 2;
    const [from, to, part] = place < 1 ? [low, middle, place] : [middle, high, place - 1];
    return `rgb(${from.map((value, channel) => Math.round(value + (to[channel] - value) * part)).join(" ")})`;
  }

  function tick(text, left, top, side) {
    const span = document.createElement("span");
    span.className = "tick";
    span.textContent = text;
    holder.append(span);
    span.style.top = `${top}px`;
    span.style.left = `${side === "right" ? left - span.offsetWidth : side === "middle" ? left - span.offsetWidth / 2 : left}px`;
    return span;
  }

  function labels(width, height) {
    for (const old of holder.querySelectorAll(".tick")) old.remove();
    const named = [...new Set([0, rows - 1, ...ranks.slowest.map(rowOf)])];
    const taken = [];
    const gutter = [];
    for (const row of named) {
      const middle = ((row + 0.5) * height) / rows;
      const top = Math.min(Math.max(middle - 8, 0), height - 16);
      if (taken.some((other) => Math.abs(other - top) < 16)) continue;
      taken.push(top);
      const slow = ranks.slowest.find((rank) => rowOf(rank) === row);
      gutter.push([`rank ${slow ?? (row ? ranks.last_rank : ranks.rows[0])}`, top]);
    }
    const spans = gutter.map(([text, top]) => tick(text, 0, top));
    return Math.max(...spans.map((span) => span.offsetWidth)) + 6;
  }

  function rowOf(rank) {
    const after = ranks.rows.findIndex((first) => first > rank);
    return (after < 0 ? rows : after) - 1;
  }

  function draw(width) {
    const whole = width || holder.clientWidth;
    const row = Math.min(Math.max(ROOM.whole / rows, ROOM.least), ROOM.most);
    const height = Math.round(Math.max(row * rows, 34));
    holder.style.height = `${height + GUTTER.bottom}px`;
    const left = labels(whole, height);
    box = { left, width: whole - left, height };
    const ratio = devicePixelRatio || 1;
    canvas.style.left = `${left}px`;
    canvas.style.width = `${box.width}px`;
    canvas.style.height = `${height}px`;
    canvas.width = Math.round(box.width * ratio);
    canvas.height = Math.round(height * ratio);
    const context = canvas.getContext("2d");
    context.fillStyle = colour("--gap");
    context.fillRect(0, 0, canvas.width, canvas.height);
    const colours = shades();
    for (let y = 0; y < rows; y += 1) {
      const [top, bottom] = [y, y + 1].map((n) => Math.round((n * canvas.height) / rows));
      for (let x = 0; x < columns; x += 1) {
        const value = ranks.permille[y][x];
        if (value === null) continue;
        const [start, end] = [x, x + 1].map((n) => Math.round((n * canvas.width) / columns));
        context.fillStyle = shadeOf(value / 1000, colours);
        context.fillRect(start, top, end - start, bottom - top);
      }
    }
    if (at) outline(context);
    tick(`step ${ranks.columns[0].toLocaleString("en")}`, left, height + 3);
    tick(`step ${ranks.last_step.toLocaleString("en")}`, whole, height + 3, "right");
  }

  function outline(context) {
    context.strokeStyle = colour("--ink");
    context.lineWidth = 1.5 * (devicePixelRatio || 1);
    const [x, y] = [(at.x * canvas.width) / columns, (at.y * canvas.height) / rows];
    context.strokeRect(x, y, Math.max(canvas.width / columns, 2), Math.max(canvas.height / rows, 2));
  }

  function read(place) {
    at = place;
    draw();
    if (!place) {
      output.textContent = rest;
      return;
    }
    const value = ranks.permille[place.y][place.x];
    const rank = ranks.rows[place.y] + (ranks.rank ? ranks.rank[place.y][place.x] ?? 0 : 0);
    const step = ranks.columns[place.x] + (ranks.step ? ranks.step[place.y][place.x] ?? 0 : 0);
    if (value === null) output.textContent = `rank ${rank}, step ${step}: no time`;
    else {
      const seconds = ranks.typical === null ? "" : `${figure.format((value / 1000) * ranks.typical)} s, `;
      output.textContent = `rank ${rank}, step ${step}: ${seconds}${(value / 1000).toFixed(3)} × the median`;
    }
  }

  draw();
  canvas.addEventListener("mousemove", (event) => {
    const { left, top, width, height } = canvas.getBoundingClientRect();
    const x = Math.min(Math.max(Math.floor(((event.clientX - left) / width) * columns), 0), columns - 1);
    const y = Math.min(Math.max(Math.floor(((event.clientY - top) / height) * rows), 0), rows - 1);
    if (at?.x !== x || at?.y !== y) read({ x, y });
  });
  canvas.addEventListener("mouseleave", () => read(null));
  holder.tabIndex = 0;
  holder.addEventListener("keydown", (event) => {
    const [x, y] = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key] ?? [0, 0];
    if (event.key === "Escape") read(null);
    else if (x || y) {
      const from = at ?? { x: x < 0 ? columns : -1, y: 0 };
      read({ x: Math.min(Math.max(from.x + x, 0), columns - 1), y: Math.min(Math.max(from.y + y, 0), rows - 1) });
    } else return;
    event.preventDefault();
  });
  drawing.follow(draw, () => [{ holder, chart: { width: box.left + box.width, setSize: () => draw() } }], drawing.PRINT_WIDTH.whole);
})();
