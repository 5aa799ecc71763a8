// What the charts of every page share: colours, ticks, lines with targets, labels that keep apart, drawing again.
const drawing = (() => {
  "use strict";
  const root = document.documentElement;
  const PRINT_WIDTH = { whole: 690, half: 333, third: 220 };
  const figure = new Intl.NumberFormat("en", { maximumSignificantDigits: 5 });
  const colour = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const printing = () => root.classList.contains("printing");
  const known = (values) => values.filter((value) => value !== null && value !== undefined);
  const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', 'DejaVu Sans', sans-serif";

  function page() {
    return JSON.parse(document.getElementById("data").textContent);
  }

  function show(value) {
    if (value === null || value === undefined) return "none";
    const size = Math.abs(value);
    return size > 0 && (size < 1e-3 || size >= 1e9) ? Number(value.toPrecision(4)).toExponential() : figure.format(value);
  }

  // Values that are compared, with the digits of the page's tables: 28.00 beside 28.57.
  function beside(values) {
    if (values.every(Number.isInteger)) return values.map(show);
    return values.map((value) => {
      const size = Math.abs(value);
      if (size < 0.1) return show(Number(value.toPrecision(3)));
      const digits = [1000, 100, 10].findIndex((least) => size >= least);
      return value.toLocaleString("en", { minimumFractionDigits: digits < 0 ? 3 : digits, maximumFractionDigits: digits < 0 ? 3 : digits });
    });
  }

  const brief = (value) => show(value === null || value === undefined ? value : Number(value.toPrecision(Math.abs(value) < 0.1 ? 3 : 4)));

  // --- axes ---

  function niceStep(span, most) {
    const raw = span / most;
    const power = 10 ** Math.floor(Math.log10(raw));
    return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= raw * (1 - 1e-9));
  }

  function evenTicks(low, high, most) {
    const step = niceStep(high - low || Math.abs(high) || 1, most);
    const found = [];
    for (let n = Math.ceil(low / step - 1e-9); n * step <= high + 1e-9 * step; n += 1) found.push(n * step + 0); // no -0
    return found;
  }

  // Ticks of an axis of logarithms, as logarithms: even ones within a decade, else 1, 2, 5 or only the powers.
  function logTicks(low, high, most) {
    if (high - low < 0.9) return evenTicks(10 ** low, 10 ** high, most).filter((value) => value > 0).map(Math.log10);
    const factors = (high - low) * 3 <= most ? [1, 2, 5] : [1];
    const apart = Math.max(1, Math.ceil((high - low) / most));
    const found = [];
    for (let power = Math.floor(low); power <= Math.ceil(high); power += 1) {
      if (power % apart === 0) found.push(...factors.map((factor) => power + Math.log10(factor)));
    }
    return found.filter((tick) => tick >= low - 1e-9 && tick <= high + 1e-9);
  }

  function tickTexts(values) {
    const largest = Math.max(...values.map(Math.abs), 0);
    if (largest >= 1e6) return values.map((value) => (value ? `${figure.format(value / 1e6)}M` : "0"));
    if (largest < 1e-2) return values.map((value) => (value ? Number(value.toPrecision(3)).toExponential() : "0"));
    return values.map((value) => figure.format(Number(value.toPrecision(10))));
  }

  // The room that an axis needs for its texts.
  function axisSize(self, texts) {
    const longest = (texts ?? []).reduce((most, text) => Math.max(most, text.length), 0);
    return Math.max(34, Math.ceil(longest * 6.9) + 12);
  }

  function axis(extra) {
    return {
      stroke: colour("--muted"),
      font: `12px ${FONT}`,
      grid: { stroke: colour("--grid"), width: 1 },
      ticks: { stroke: colour("--grid"), width: 1, size: 4 },
      ...extra,
    };
  }

  function wholeTicks(self, _, low, high) {
    return evenTicks(low, high, Math.max(2, Math.floor(self.bbox.width / uPlot.pxRatio / 70))).filter(Number.isInteger);
  }

  const stepAxis = () => axis({ size: 26, splits: wholeTicks, values: (_, ticks) => ticks.map((tick) => tick.toLocaleString("en")) });

  function valueAxis(log) {
    const most = (self) => Math.max(2, Math.floor(self.bbox.height / uPlot.pxRatio / 34));
    return axis({
      size: axisSize,
      splits: (self, _, low, high) => (log ? logTicks : evenTicks)(low, high, most(self)),
      values: (_, ticks) => tickTexts(log ? ticks.map((tick) => 10 ** tick) : ticks),
    });
  }

  // --- lines on a chart ---

  function stroke(chart, name, dash, from, to) {
    const { ctx, bbox } = chart;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    ctx.strokeStyle = colour(name);
    ctx.lineWidth = 1.25 * uPlot.pxRatio;
    ctx.setLineDash(dash.map((length) => length * uPlot.pxRatio));
    ctx.beginPath();
    ctx.moveTo(...from);
    ctx.lineTo(...to);
    ctx.stroke();
    ctx.restore();
  }

  function across(chart, value, name, dash) {
    const y = chart.valToPos(value, "y", true);
    stroke(chart, name, dash, [chart.bbox.left, y], [chart.bbox.left + chart.bbox.width, y]);
  }

  function down(chart, value, name, dash = []) {
    const x = chart.valToPos(value, "x", true);
    stroke(chart, name, dash, [x, chart.bbox.top], [x, chart.bbox.top + chart.bbox.height]);
  }

  // Fills spans of steps, first and last of each.
  function shade(chart, spans) {
    const { ctx, bbox } = chart;
    ctx.fillStyle = colour("--shade");
    for (const [first, last] of spans) {
      const left = Math.max(chart.valToPos(first - 0.5, "x", true), bbox.left);
      const right = Math.min(chart.valToPos(last + 0.5, "x", true), bbox.left + bbox.width);
      if (right > left) ctx.fillRect(left, bbox.top, right - left, bbox.height);
    }
  }

  // --- labels: texts over a chart that neither leave it nor touch each other ---

  const ROW = 17;

  function places(label, size, over) {
    const { width, height } = over;
    if (label.y !== undefined) {
      const sides = [width - size.width - 2, 2];
      return [label.y - size.height - 1, label.y + 2].flatMap((top) => sides.map((left) => [left, top]));
    }
    const found = [];
    for (let row = 0; row * ROW < height - ROW; row += 1) {
      found.push([label.x + 4, 2 + row * ROW], [label.x - size.width - 4, 2 + row * ROW]);
    }
    return found;
  }

  // `wanted`: {text, tone, x or y}, the important ones first; one that has no room is left out, and false comes back.
  function label(chart, wanted) {
    for (const old of chart.over.querySelectorAll(".label")) old.remove();
    const over = { width: chart.over.clientWidth, height: chart.over.clientHeight };
    const taken = [];
    for (const each of wanted) {
      if (each.y < 0 || each.y > over.height || each.x < 0 || each.x > over.width) continue;
      const span = document.createElement("span");
      span.className = `label ${each.tone}`;
      span.textContent = each.text;
      chart.over.append(span);
      const size = { width: span.offsetWidth, height: span.offsetHeight };
      const apart = ([left, top]) =>
        left >= 0 && top >= 0 && left + size.width <= over.width && top + size.height <= over.height &&
        taken.every((box) => left + size.width < box.left || left > box.right || top + size.height <= box.top || top >= box.bottom);
      const place = places(each, size, over).find(apart);
      if (!place) {
        span.remove();
        continue;
      }
      span.style.left = `${place[0]}px`;
      span.style.top = `${place[1]}px`;
      taken.push({ left: place[0], right: place[0] + size.width, top: place[1], bottom: place[1] + size.height });
    }
  }

  // --- a chart of lines ---

  function extent(chart, low, high) {
    if (low === null || low === undefined) return [0, 1];
    const at = chart.log ? Math.log10 : (value) => value;
    if (chart.clip && chart.frame && !(chart.log && chart.frame[0] <= 0)) {
      const frame = chart.frame.map(at);
      // Zoomed into what lies outside, that alone makes the frame.
      const outside = low > frame[1] || high < frame[0];
      if (!outside) [low, high] = chart.fixed ? frame : [Math.max(low, frame[0]), Math.min(high, frame[1])];
    }
    for (const { value } of chart.targets ?? []) {
      if (!chart.log || value > 0) [low, high] = [Math.min(low, at(value)), Math.max(high, at(value))];
    }
    const room = (high - low || Math.abs(high) || 1) * 0.06;
    return [low - room, high + room];
  }

  // Arrows at the edge stand for values beyond it; neighbours share one.
  function beyond(self, columns) {
    const { ctx, bbox } = self;
    const { min, max } = self.scales.y;
    const size = 3.5 * uPlot.pxRatio;
    const drawn = new Set();
    ctx.save();
    ctx.fillStyle = colour("--line");
    for (const column of columns) {
      for (let index = 0; index < column.length; index += 1) {
        const value = column[index];
        if (value === null || value === undefined || (value >= min && value <= max)) continue;
        const x = self.valToPos(self.data[0][index], "x", true);
        const key = `${value > max}${Math.round(x / (3 * size))}`;
        if (x < bbox.left || x > bbox.left + bbox.width || drawn.has(key)) continue;
        drawn.add(key);
        const [edge, way] = value > max ? [bbox.top, 1] : [bbox.top + bbox.height, -1];
        ctx.beginPath();
        ctx.moveTo(x, edge);
        ctx.lineTo(x - size, edge + way * 1.7 * size);
        ctx.lineTo(x + size, edge + way * 1.7 * size);
        ctx.fill();
      }
    }
    ctx.restore();
  }

  // `chart`: {holder, x, lines: [{values, stroke, width, dash, points}], limits, log, clip, frame, fixed, targets, median,
  // marks, spans, sync, read(index), zoom(limits)}; values are not logarithms.
  function lines(chart, width) {
    const at = (value) => (value === null || value === undefined ? value : value > 0 ? Math.log10(value) : null);
    const columns = chart.lines.map((line) => (chart.log ? line.values.map(at) : line.values));
    const place = (value) => (chart.log ? Math.log10(value) : value);
    const { holder } = chart;
    return new uPlot(
      {
        width: width || holder.clientWidth,
        height: holder.clientHeight,
        padding: [8, 10, 0, 0],
        legend: { show: false },
        cursor: { y: false, sync: { key: chart.sync }, drag: { x: true, y: false, setScale: false }, points: { size: 7 } },
        scales: { x: { time: false, range: chart.limits }, y: { range: (_, low, high) => extent(chart, low, high) } },
        axes: [stepAxis(), valueAxis(chart.log)],
        series: [{}, ...chart.lines.map((line) => ({
          stroke: line.stroke, width: line.width ?? 1.5, dash: line.dash, spanGaps: line.spanGaps ?? false,
          points: { show: line.points ?? false, size: 4, fill: line.stroke, width: 0 },
        }))],
        hooks: {
          drawClear: [(self) => shade(self, chart.spans ?? [])],
          draw: [
            (self) => {
              if (chart.clip) beyond(self, columns);
              if (chart.median !== null && chart.median !== undefined) across(self, place(chart.median), "--median", [5, 4]);
              for (const { value } of chart.targets ?? []) across(self, place(value), "--target", [2, 3]);
              for (const mark of chart.marks ?? []) down(self, mark.step - 0.5, `--${mark.tone}`, [6, 3]);
              label(self, [
                ...(chart.targets ?? []).map(({ value, text }) => ({ text, tone: "target", y: self.valToPos(place(value), "y") })),
                ...(chart.marks ?? []).map(({ step, text, tone }) => ({ text, tone, x: self.valToPos(step - 0.5, "x") })),
              ]);
            },
          ],
          setCursor: [(self) => chart.read(self.cursor.idx)],
          setSelect: [
            (self) => {
              if (self.select.width < 3) return;
              const from = self.posToVal(self.select.left, "x");
              const to = self.posToVal(self.select.left + self.select.width, "x");
              self.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
              chart.zoom([from, to]);
            },
          ],
          ready: [(self) => self.over.addEventListener("dblclick", () => chart.zoom(null))],
        },
      },
      [chart.x, ...columns],
      holder,
    );
  }

  // The running median of what is known, over a width in steps; null in between.
  function smooth(steps, values, width) {
    const places = values.map((value, index) => (value === null || value === undefined ? -1 : index)).filter((index) => index >= 0);
    const found = new Array(steps.length).fill(null);
    const sorted = [];
    const at = (value) => {
      let [low, high] = [0, sorted.length];
      while (low < high) {
        const middle = (low + high) >> 1;
        if (sorted[middle] < value) low = middle + 1;
        else high = middle;
      }
      return low;
    };
    let [first, next] = [0, 0];
    for (const place of places) {
      for (; next < places.length && steps[places[next]] <= steps[place] + width / 2; next += 1) {
        const value = values[places[next]];
        sorted.splice(at(value), 0, value);
      }
      for (; steps[places[first]] < steps[place] - width / 2; first += 1) sorted.splice(at(values[places[first]]), 1);
      const half = sorted.length >> 1;
      found[place] = sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
    }
    return found;
  }

  // A run's curve, smoothed over a width in steps: of a thinned run, by the medians of its buckets. None for no width.
  function smoothed(run, curve, width) {
    if (!width) return null;
    if (!run.starts.length) return smooth(run.steps, curve.values, width);
    const some = new Array(run.steps.length).fill(null);
    run.starts.forEach((place, bucket) => { some[place] = curve.medians[bucket]; });
    return smooth(run.steps, some, width);
  }

  // --- the controls above the charts ---

  const MANY = 200; // points from which on a line is smoothed at first

  function rounded(value) {
    const power = 10 ** Math.floor(Math.log10(value));
    const near = [1, 2, 5, 10].map((factor) => factor * power);
    return Math.round(near.reduce((a, b) => (Math.abs(b - value) < Math.abs(a - value) ? b : a)));
  }

  function tools(whole, count) {
    const [reset, smoothing, log, clip] = ["reset", "smoothing", "log", "clip"].map((id) => document.getElementById(id));
    const widths = [200, 60, 15].map((parts) => Math.max(5, rounded((whole[1] - whole[0]) / parts)));
    for (const width of new Set(widths)) {
      const option = document.createElement("option");
      option.value = width;
      option.textContent = `median of ${width.toLocaleString("en")} steps`;
      smoothing.append(option);
    }
    if (count >= MANY) smoothing.value = widths[1];
    const listen = (draw, zoom) => {
      reset.addEventListener("click", () => zoom(null));
      for (const control of [smoothing, log, clip]) control.addEventListener("change", () => draw());
    };
    return { reset, log, clip, width: () => Number(smoothing.value), listen };
  }

  // The limits that are asked for (null: all) inside the whole; the current ones where they would show nothing.
  function within(limits, whole, current) {
    const next = limits ? [Math.max(limits[0], whole[0]), Math.min(limits[1], whole[1])] : whole;
    if (next[1] - next[0] < 1) return current;
    return next[0] === whole[0] && next[1] === whole[1] ? whole : next;
  }

  // --- the keyboard: arrows read the values, + and - zoom, Escape goes back ---

  function keys(holder, current, zoom) {
    holder.tabIndex = 0;
    holder.addEventListener("keydown", (event) => {
      const chart = current();
      const x = chart.data[0];
      const { min, max } = chart.scales.x;
      const inside = x.map((value, index) => (value >= min && value <= max ? index : -1)).filter((index) => index >= 0);
      if (!inside.length) return;
      const [first, last] = [inside[0], inside[inside.length - 1]];
      const at = chart.cursor.idx ?? (event.key === "ArrowLeft" ? last + 1 : first - 1);
      const pace = event.shiftKey ? Math.max(1, Math.round((last - first) / 20)) : 1;
      const moved = { ArrowRight: at + pace, ArrowLeft: at - pace, Home: first, End: last }[event.key];
      if (moved !== undefined) {
        const index = Math.min(Math.max(moved, first), last);
        chart.setCursor({ left: chart.valToPos(x[index], "x"), top: 0 }, true, true);
      } else if (event.key === "Escape") {
        chart.setCursor({ left: -10, top: -10 }, true, true);
        zoom?.(null);
      } else if (zoom && "+-".includes(event.key)) {
        const middle = chart.cursor.idx === null || chart.cursor.idx === undefined ? (min + max) / 2 : x[chart.cursor.idx];
        const half = ((max - min) / 2) * (event.key === "+" ? 0.5 : 2);
        zoom([middle - half, middle + half]);
      } else return;
      event.preventDefault();
    });
  }

  // Draws again for the other colour scheme and for print, and fits charts to the window. `charts()` are the drawn ones
  // with their holders.
  function follow(draw, charts, printWidth) {
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => draw());
    new ResizeObserver(() => {
      for (const { chart, holder } of charts()) {
        const { clientWidth: width, clientHeight: height } = holder;
        if (width && width !== chart.width && !printing()) chart.setSize({ width, height });
      }
    }).observe(document.querySelector("main"));
    addEventListener("beforeprint", () => {
      root.classList.add("printing");
      draw(printWidth);
    });
    addEventListener("afterprint", () => {
      root.classList.remove("printing");
      draw();
    });
  }

  return { PRINT_WIDTH, FONT, across, axis, beside, brief, colour, down, evenTicks, figure, follow, keys, known, label, lines, page, show, smoothed, stroke, tickTexts, tools, valueAxis, within };
})();
