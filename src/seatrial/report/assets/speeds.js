(() => {
  "use strict";
  const { speeds } = drawing.page();
  if (!speeds.length) return;
  const { colour, figure } = drawing;
  const holder = document.getElementById("speeds");
  const output = document.getElementById("speeds-readout");
  const places = speeds.map((_, index) => index);
  const tones = [...new Set(speeds.map((speed) => speed.tone))];
  const low = Math.min(...speeds.map((speed) => speed.low));
  const high = Math.max(...speeds.map((speed) => speed.high));
  const LABEL = 90; // CSS pixels that a date needs
  let chart = null;

  function intervals(self) {
    for (const [index, speed] of speeds.entries()) {
      const x = self.valToPos(index, "x", true);
      const [bottom, top] = [speed.low, speed.high].map((value) => self.valToPos(value, "y", true));
      drawing.stroke(self, `--${speed.tone}`, [], [x, bottom], [x, top]);
    }
  }

  function read(index) {
    const speed = speeds[index ?? -1];
    output.textContent = speed ? `${speed.run}, ${speed.date}: ${drawing.beside([speed.rate, speed.low, speed.high]).join(" / ").replace(" / ", " (").replace(" / ", " to ")})` : "";
  }

  function dates(self) {
    const most = Math.max(1, Math.floor(self.bbox.width / uPlot.pxRatio / LABEL));
    const apart = Math.ceil(speeds.length / most);
    return places.filter((index) => index % apart === 0);
  }

  function draw(width) {
    chart?.destroy();
    const room = (high - low) * 0.1 || high * 0.05;
    chart = new uPlot(
      {
        width: width || holder.clientWidth,
        height: holder.clientHeight,
        padding: [8, 10, 0, 0],
        legend: { show: false },
        cursor: { y: false, drag: { x: false, y: false }, points: { size: 9 } },
        scales: { x: { time: false, range: () => [-0.5, speeds.length - 0.5] }, y: { range: () => [Math.max(0, low - room), high + room] } },
        axes: [
          drawing.axis({ size: 26, splits: dates, values: (_, ticks) => ticks.map((index) => speeds[index].date.slice(0, 10)), grid: { show: false } }),
          drawing.valueAxis(false),
        ],
        series: [{}, ...tones.map((tone) => {
          const stroke = colour(`--${tone}`);
          return { stroke, width: 1, spanGaps: true, points: { show: true, size: 6, fill: stroke, width: 0 } };
        })],
        hooks: { draw: [intervals], setCursor: [(self) => read(self.cursor.idx)] },
      },
      [places, ...tones.map((tone) => speeds.map((speed) => (speed.tone === tone ? speed.rate : null)))],
      holder,
    );
  }

  draw();
  const ends = drawing.beside([speeds[0].rate, speeds[speeds.length - 1].rate]);
  holder.setAttribute("aria-label", `Tokens/s per device of ${speeds.length} runs, the oldest ${ends[0]}, the newest ${ends[1]}, between ${figure.format(low)} and ${figure.format(high)}`);
  drawing.keys(holder, () => chart);
  drawing.follow(draw, () => [{ chart, holder }], drawing.PRINT_WIDTH.whole);
})();
