// The step time of a configuration from run to run: a point a run with its interval, the levels, the changes with names.
(() => {
  "use strict";
  const { points, levels, changes } = drawing.page();
  const holder = document.getElementById("trend");
  if (!holder) return;
  const { colour } = drawing;
  const output = document.getElementById("trend-readout");
  const places = points.map((_, index) => index);
  const sorted = points.map((point) => point.seconds).sort((a, b) => a - b);
  const at = (part) => sorted[Math.round(part * (sorted.length - 1))];
  // Odd runs do not flatten the others: their points stand at the edge.
  const spread = Math.max(at(0.9) - at(0.1), 0.02 * at(0.5), ...levels.map((level) => Math.abs(level.seconds - at(0.5))));
  const low = Math.max(sorted[0], at(0.5) - 2 * spread);
  const high = Math.min(sorted[sorted.length - 1], at(0.5) + 2 * spread);
  const room = (high - low) * 0.12 || high * 0.05;
  const LABEL = 90; // CSS pixels that a date needs
  let chart = null;

  function read(index) {
    const point = points[index ?? -1];
    const last = levels[levels.length - 1];
    if (!point) output.textContent = `now ${drawing.beside([last.seconds])[0]} s, the median of ${last.end - last.first} runs`;
    else output.textContent = `${point.name}, ${point.date}: ${drawing.beside([point.seconds])[0]} s, ${point.outcome}`;
  }

  function within(self) {
    const { ctx, bbox } = self;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    for (const [index, point] of points.entries()) {
      const x = self.valToPos(index, "x", true);
      drawing.stroke(self, "--faint", [], [x, self.valToPos(point.low, "y", true)], [x, self.valToPos(point.high, "y", true)]);
    }
    for (const level of levels) {
      ctx.strokeStyle = colour("--ink");
      ctx.lineWidth = 2 * uPlot.pxRatio;
      const y = self.valToPos(level.seconds, "y", true);
      ctx.beginPath();
      ctx.moveTo(self.valToPos(level.first - 0.5, "x", true), y);
      ctx.lineTo(self.valToPos(level.end - 0.5, "x", true), y);
      ctx.stroke();
    }
    ctx.restore();
    for (const change of changes) drawing.down(self, change.place - 0.5, `--${change.tone}`, [6, 3]);
    drawing.label(self, [...changes].reverse().map((change) => ({
      text: `${change.by} ${change.since}`, tone: change.tone, x: self.valToPos(change.place - 0.5, "x"),
    })));
  }

  function dates(self) {
    const most = Math.max(1, Math.floor(self.bbox.width / uPlot.pxRatio / LABEL));
    const apart = Math.ceil(points.length / most);
    return places.filter((index) => index % apart === 0);
  }

  const dots = (name, wanted) => {
    const stroke = colour(name);
    const size = points.length > 250 ? 3.5 : 6;
    return [{ stroke, width: 0, paths: () => null, points: { show: true, size, fill: stroke, width: 0 } }, points.map((point) => (wanted(point) ? Math.min(Math.max(point.seconds, low - room), high + room) : null))];
  };

  function draw(width) {
    chart?.destroy();
    const series = [dots("--line", (point) => point.tone === "pass"), dots("--fail", (point) => point.tone !== "pass")];
    chart = new uPlot(
      {
        width: width || holder.clientWidth,
        height: holder.clientHeight,
        padding: [8, 10, 0, 0],
        legend: { show: false },
        cursor: { y: false, drag: { x: false, y: false }, points: { size: 9 } },
        scales: { x: { time: false, range: () => [-0.5, points.length - 0.5] }, y: { range: () => [low - room, high + room] } },
        axes: [
          drawing.axis({ size: 26, splits: dates, values: (_, ticks) => ticks.map((index) => points[index].date.slice(0, 10)), grid: { show: false } }),
          drawing.valueAxis(false),
        ],
        series: [{}, ...series.map(([each]) => each)],
        hooks: {
          drawClear: [within],
          setCursor: [(self) => read(self.cursor.idx)],
          ready: [(self) => self.over.addEventListener("click", () => {
            if (self.cursor.idx !== null) location.href = `/runs/${points[self.cursor.idx].key}`;
          })],
        },
      },
      [places, ...series.map(([, values]) => values)],
      holder,
    );
    read(null);
  }

  draw();
  const told = changes.map((change) => `; ${change.size} ${change.word} since ${change.since}`).join("");
  holder.setAttribute("aria-label", `Step time of ${points.length} runs, now ${drawing.beside([levels[levels.length - 1].seconds])[0]} s${told}`);
  drawing.keys(holder, () => chart);
  holder.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && chart.cursor.idx !== null && chart.cursor.idx !== undefined) location.href = `/runs/${points[chart.cursor.idx].key}`;
  });
  drawing.follow(draw, () => [{ chart, holder }], drawing.PRINT_WIDTH.whole);
})();
