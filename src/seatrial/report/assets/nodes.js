(() => {
  "use strict";
  const { nodes } = drawing.page();
  if (!nodes.length) return;
  const { colour } = drawing;
  const figure = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });
  const holders = [...document.querySelectorAll(".lane .chart")];
  const WHOLE = { utilization: 100, "node utilization": 100 };
  const FROM_ZERO = new Set(["watts", "memory_bytes", "node memory_bytes"]);

  // Of all nodes together, so that the lanes can be compared.
  const spans = nodes.flatMap((node) => Object.values(node).map(([at]) => [at[0], at[at.length - 1]]));
  const whole = [Math.min(...spans.map(([first]) => first)), Math.max(...spans.map(([, last]) => last), 1)];
  function range(quantity) {
    const drawn = nodes.map((node) => node[quantity]).filter(Boolean);
    const low = Math.min(...drawn.map(([, lowest]) => lowest.reduce((a, b) => Math.min(a, b))));
    const high = Math.max(...drawn.map(([, , , highest]) => highest.reduce((a, b) => Math.max(a, b))));
    if (WHOLE[quantity]) return [0, WHOLE[quantity]];
    const least = FROM_ZERO.has(quantity) ? 0 : low;
    const room = (high - least || Math.abs(high) || 1) * 0.08;
    return [Math.max(0, least - room), high + room];
  }

  let charts = [];

  const axis = (extra) => drawing.axis({ font: `11px ${drawing.FONT}`, ticks: { show: false }, ...extra });

  function build(holder, width) {
    const quantity = holder.dataset.quantity;
    const rows = nodes[holder.dataset.node][quantity];
    const output = holder.parentElement.querySelector("output");
    const atRest = output.dataset.atRest ?? (output.dataset.atRest = output.textContent);
    const limits = range(quantity);
    const line = colour("--line");
    const edge = { stroke: "transparent", width: 0, points: { show: false } };
    return new uPlot(
      {
        width: width || holder.clientWidth,
        height: holder.clientHeight,
        padding: [6, 18, 0, 0],
        legend: { show: false },
        cursor: { y: false, sync: { key: "nodes" }, drag: { x: false, y: false }, points: { show: false } },
        scales: { x: { time: false, range: () => whole }, y: { range: () => limits } },
        axes: [
          axis({ size: 20, space: 70, values: (_, ticks) => ticks.map((tick) => `${figure.format(tick)} s`) }),
          axis({ size: 44, space: 26, values: (_, ticks) => ticks.map((tick) => figure.format(tick)) }),
        ],
        series: [{}, edge, { stroke: line, width: 1.5, points: { show: rows[0].length < 3, size: 4, fill: line, width: 0 } }, edge],
        bands: [{ series: [3, 1], fill: `color-mix(in srgb, ${line} 22%, transparent)` }],
        hooks: {
          setCursor: [
            (self) => {
              const index = self.cursor.idx;
              if (index === null || index === undefined) {
                output.textContent = atRest;
                return;
              }
              const [at, low, mean, high] = rows.map((values) => figure.format(values[index]));
              output.textContent = low === high ? `${at} s: ${mean}` : `${at} s: ${low} to ${high}`;
            },
          ],
        },
      },
      rows,
      holder,
    );
  }

  function draw(width) {
    for (const chart of charts) chart.destroy();
    charts = holders.map((holder) => build(holder, width));
  }

  draw();
  drawing.follow(draw, () => charts.map((chart, index) => ({ chart, holder: holders[index] })), drawing.PRINT_WIDTH.third);
})();
