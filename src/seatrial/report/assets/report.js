"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  if (!data.steps.length) return;
  const root = document.documentElement;
  const reset = document.getElementById("reset");
  const whole = [data.steps[0] - 0.5, data.steps[data.steps.length - 1] + 0.5];
  const figure = new Intl.NumberFormat("en", { maximumSignificantDigits: 5 });
  const colour = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const PRINT_WIDTH = 690;

  const SERIES = [
    { id: "loss", name: "Loss", unit: "" },
    { id: "grad_norm", name: "Gradient norm", unit: "" },
    { id: "seconds", name: "Step time", unit: " s", frame: data.seconds_frame, median: data.median },
    { id: "rate", name: "Tokens/s per device", unit: "", frame: data.rate_frame, median: data.rate_median, bound: data.rate_bound },
  ].filter((series) => data[series.id].some((value) => value !== null) || remove(series.id));

  let charts = [];
  let shown = whole;

  function remove(id) {
    document.getElementById(id).closest("figure").remove();
    return false;
  }

  // Fills the spans of steps that the median leaves out.
  function shade(chart) {
    const { ctx, bbox } = chart;
    ctx.fillStyle = colour("--shade");
    for (const [first, last] of data.left_out) {
      const left = Math.max(chart.valToPos(first - 0.5, "x", true), bbox.left);
      const right = Math.min(chart.valToPos(last + 0.5, "x", true), bbox.left + bbox.width);
      if (right > left) ctx.fillRect(left, bbox.top, right - left, bbox.height);
    }
  }

  function stroke(chart, name, dash, from, to) {
    const { ctx, bbox } = chart;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    ctx.strokeStyle = colour(name);
    ctx.lineWidth = uPlot.pxRatio;
    ctx.setLineDash(dash.map((length) => length * uPlot.pxRatio));
    ctx.beginPath();
    ctx.moveTo(...from);
    ctx.lineTo(...to);
    ctx.stroke();
    ctx.restore();
  }

  function across(chart, value, name, dash) {
    if (value === null || value === undefined) return;
    const y = chart.valToPos(value, "y", true);
    stroke(chart, name, dash, [chart.bbox.left, y], [chart.bbox.left + chart.bbox.width, y]);
  }

  function down(chart, step, name) {
    if (step === null) return;
    const x = chart.valToPos(step, "x", true);
    stroke(chart, name, [], [x, chart.bbox.top], [x, chart.bbox.top + chart.bbox.height]);
  }

  function atRest(series) {
    const values = data[series.id].filter((value) => value !== null);
    if (series.median === undefined || series.median === null) return `last ${figure.format(values[values.length - 1])}${series.unit}`;
    const bound = series.bound === null || series.bound === undefined ? "" : `, bound ${figure.format(series.bound)}`;
    return `median ${figure.format(series.median)}${series.unit}${bound}`;
  }

  function read(series, index) {
    const output = document.getElementById(`${series.id}-readout`);
    if (index === null || index === undefined) {
      output.textContent = atRest(series);
      return;
    }
    const value = data[series.id][index];
    const text = value === null ? "no finite value" : figure.format(value) + series.unit;
    output.textContent = `step ${data.steps[index]}: ${text}`;
  }

  function range(series, low, high) {
    if (low === null) return [0, 1];
    if (series.frame) {
      // Zoomed into the warm-up alone, its own values make the frame.
      const apart = low > series.frame[1] || high < series.frame[0];
      if (!apart) [low, high] = [Math.max(low, series.frame[0]), Math.min(high, series.frame[1])];
      [low, high] = apart ? [low, high] : [Math.min(low, series.frame[0]), Math.max(high, series.frame[1])];
      if (series.bound !== null && series.bound !== undefined) [low, high] = [Math.min(low, series.bound), Math.max(high, series.bound)];
    }
    const room = (high - low || Math.abs(high) || 1) * 0.06;
    return [low - room, high + room];
  }

  function zoom(limits) {
    if (limits[0] === shown[0] && limits[1] === shown[1]) return;
    shown = limits;
    reset.hidden = shown === whole;
    for (const chart of charts) chart.setScale("x", { min: limits[0], max: limits[1] });
  }

  function axis(extra) {
    return {
      stroke: colour("--muted"),
      font: "12px system-ui, sans-serif",
      grid: { stroke: colour("--grid"), width: 1 },
      ticks: { stroke: colour("--grid"), width: 1, size: 4 },
      ...extra,
    };
  }

  function build(series, width) {
    const holder = document.getElementById(series.id);
    const line = colour("--line");
    const chart = new uPlot(
      {
        width: width || holder.clientWidth,
        height: holder.clientHeight,
        padding: [8, 8, 0, 0],
        legend: { show: false },
        cursor: { y: false, sync: { key: "steps" }, drag: { x: true, y: false, setScale: false }, points: { size: 7 } },
        scales: { x: { time: false, range: () => shown }, y: { range: (_, low, high) => range(series, low, high) } },
        axes: [
          axis({ size: 26, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6] }),
          axis({ size: 58, values: (_, ticks) => ticks.map((tick) => figure.format(tick)) }),
        ],
        series: [{}, { stroke: line, width: 1.5, points: { show: data.steps.length <= 60, size: 4, fill: line, width: 0 } }],
        hooks: {
          drawClear: series.median === undefined ? [] : [shade],
          draw: [
            (self) => {
              across(self, series.median, "--median", [5, 4]);
              across(self, series.bound, "--fail", [1.5, 3]);
              down(self, data.first_bad_step, "--fail");
            },
          ],
          setCursor: [(self) => read(series, self.cursor.idx)],
          setSelect: [
            (self) => {
              if (self.select.width < 3) return;
              const from = self.posToVal(self.select.left, "x");
              const to = self.posToVal(self.select.left + self.select.width, "x");
              self.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
              zoom([from, to]);
            },
          ],
          ready: [(self) => self.over.addEventListener("dblclick", () => zoom(whole))],
        },
      },
      [data.steps, data[series.id]],
      holder,
    );
    const values = data[series.id].filter((value) => value !== null);
    const ends = [values[0], values[values.length - 1]].map((value) => figure.format(value));
    holder.setAttribute("aria-label", `${series.name} over ${data.steps.length} steps, first ${ends[0]}, last ${ends[1]}; ${atRest(series)}`);
    read(series, null);
    return chart;
  }

  function draw(width) {
    for (const chart of charts) chart.destroy();
    charts = SERIES.map((series) => build(series, width));
  }

  draw();
  reset.addEventListener("click", () => zoom(whole));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => draw());
  new ResizeObserver(() => {
    for (const [index, chart] of charts.entries()) {
      const { clientWidth: width, clientHeight: height } = document.getElementById(SERIES[index].id);
      if (width && width !== chart.width && !root.classList.contains("printing")) chart.setSize({ width, height });
    }
  }).observe(document.querySelector("main"));
  addEventListener("beforeprint", () => {
    root.classList.add("printing");
    draw(PRINT_WIDTH);
  });
  addEventListener("afterprint", () => {
    root.classList.remove("printing");
    draw();
  });
})();
