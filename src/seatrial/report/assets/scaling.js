(() => {
  "use strict";
  const data = drawing.page();
  const { axis, colour, figure } = drawing;
  const holder = document.getElementById("rate");
  const output = document.getElementById("rate-readout");
  const sizes = data.labels.map((_, index) => index);
  const LEAST = 0.9; // of the first rate: small differences look small
  const low = Math.min(...data.low);
  const high = Math.max(...data.high);
  let chart = null;

  function line(self, name, dash, points) {
    const { ctx } = self;
    ctx.save();
    ctx.strokeStyle = colour(name);
    ctx.lineWidth = 1.5 * uPlot.pxRatio;
    ctx.setLineDash(dash.map((length) => length * uPlot.pxRatio));
    ctx.beginPath();
    points.forEach(([x, y], index) => (index ? ctx.lineTo(x, y) : ctx.moveTo(x, y)));
    ctx.stroke();
    ctx.restore();
  }

  function intervals(self) {
    const arm = 4 * uPlot.pxRatio;
    const { left, width } = self.bbox;
    const ideal = self.valToPos(data.rate[0], "y", true);
    line(self, "--median", [5, 4], [[left, ideal], [left + width, ideal]]);
    for (const index of sizes) {
      const x = self.valToPos(index, "x", true);
      const [bottom, top] = [data.low[index], data.high[index]].map((value) => self.valToPos(value, "y", true));
      line(self, "--line", [], [[x, bottom], [x, top]]);
      for (const y of [bottom, top]) line(self, "--line", [], [[x - arm, y], [x + arm, y]]);
    }
  }

  function read(index) {
    if (index === null || index === undefined) output.textContent = "";
    else output.textContent = `${data.labels[index]} devices: ${figure.format(data.rate[index])} (${figure.format(data.low[index])} to ${figure.format(data.high[index])})`;
  }

  function draw(printed) {
    chart?.destroy();
    const room = (high - low) * 0.1 || high * 0.05;
    chart = new uPlot(
      {
        width: printed || holder.clientWidth,
        height: holder.clientHeight,
        padding: [8, 8, 0, 0],
        legend: { show: false },
        cursor: { y: false, drag: { x: false, y: false }, points: { size: 9 } },
        scales: { x: { time: false, range: () => [-0.5, sizes.length - 0.5] }, y: { range: () => [Math.min(low - room, LEAST * data.rate[0]), high + room] } },
        axes: [
          axis({ size: 26, splits: () => sizes, values: () => data.labels, grid: { show: false } }),
          axis({ size: 58, values: (_, ticks) => ticks.map((tick) => figure.format(tick)) }),
        ],
        series: [{}, { stroke: colour("--line"), width: 1.5, points: { show: true, size: 7, fill: colour("--line"), width: 0 } }],
        hooks: { draw: [intervals], setCursor: [(self) => read(self.cursor.idx)] },
      },
      [sizes, data.rate],
      holder,
    );
    const said = data.labels.map((label, index) => `${label} devices ${figure.format(data.rate[index])}`);
    holder.setAttribute("aria-label", `Tokens/s per device: ${said.join(", ")}`);
  }

  draw();
  drawing.keys(holder, () => chart);
  drawing.follow(draw, () => [{ chart, holder }], drawing.PRINT_WIDTH.whole);
})();
