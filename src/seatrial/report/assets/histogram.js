(() => {
  "use strict";
  const { histogram } = drawing.page();
  if (!histogram) return;
  const { colour, figure } = drawing;
  const holder = document.getElementById("histogram");
  const output = document.getElementById("histogram-readout");
  const { edges, counts, median, low, high, targets } = histogram;
  const centres = counts.map((_, bin) => (edges[bin] + edges[bin + 1]) / 2);
  const places = [edges[0], edges[edges.length - 1], ...targets.map((target) => target.value)];
  const [least, most] = [Math.min(...places), Math.max(...places)];
  const room = 0.04 * (most - least);
  const others = histogram.beyond ? `; ${histogram.beyond.toLocaleString("en")} further away` : "";
  const rest = `5–95%: ${drawing.beside([low, high]).join("–")} s${others}`;
  let chart = null;

  function read(bin) {
    const known = bin !== null && bin !== undefined;
    output.textContent = known ? `${figure.format(edges[bin])} to ${figure.format(edges[bin + 1])} s: ${counts[bin].toLocaleString("en")} steps` : rest;
  }

  function columns(self) {
    const { ctx } = self;
    ctx.fillStyle = colour("--column");
    const ground = self.valToPos(0, "y", true);
    counts.forEach((count, bin) => {
      const [left, right] = [edges[bin], edges[bin + 1]].map((edge) => Math.round(self.valToPos(edge, "x", true)));
      const top = self.valToPos(count, "y", true);
      ctx.fillRect(left, top, Math.max(right - left - uPlot.pxRatio, 1), ground - top);
    });
  }

  function lines(self) {
    columns(self);
    drawing.down(self, median, "--median", [5, 4]);
    for (const { value } of targets) drawing.down(self, value, "--target", [2, 3]);
    drawing.label(self, [
      ...targets.map(({ value, text }) => ({ text, tone: "target", x: self.valToPos(value, "x") })),
      { text: "median", tone: "muted", x: self.valToPos(median, "x") },
    ]);
  }

  function draw(width) {
    chart?.destroy();
    chart = new uPlot(
      {
        width: width || holder.clientWidth,
        height: holder.clientHeight,
        padding: [8, 10, 0, 0],
        legend: { show: false },
        cursor: { y: false, drag: { x: false, y: false }, points: { show: false } },
        scales: { x: { time: false, range: () => [least - room, most + room] }, y: { range: (_, min, max) => [0, 1.08 * max] } },
        axes: [
          drawing.axis({ size: 26, splits: (self) => drawing.evenTicks(least, most, Math.max(2, Math.floor(self.bbox.width / uPlot.pxRatio / 60))), values: (_, ticks) => drawing.tickTexts(ticks) }),
          drawing.valueAxis(false),
        ],
        series: [{}, { paths: () => null, points: { show: false } }],
        hooks: { draw: [lines], setCursor: [(self) => read(self.cursor.idx)] },
      },
      [centres, counts],
      holder,
    );
    read(null);
  }

  draw();
  const total = counts.reduce((sum, count) => sum + count, histogram.beyond);
  const named = [...targets.map((target) => target.text), ...histogram.far].map((text) => `; ${text}`).join("");
  holder.setAttribute("aria-label", `Step-time histogram of ${total.toLocaleString("en")} steps: median ${drawing.show(median)} s, ${rest}${named}`);
  drawing.keys(holder, () => chart);
  drawing.follow(draw, () => [{ chart, holder }], drawing.PRINT_WIDTH.half);
})();
