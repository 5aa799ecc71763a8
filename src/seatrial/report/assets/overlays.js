(() => {
  "use strict";
  const { overlays } = drawing.page();
  const names = Object.keys(overlays.charts);
  if (!names.length) return;
  const { colour, known } = drawing;
  const DASHES = [[], [6, 3], [2, 3], [8, 3, 2, 3]];
  const all = overlays.runs.flatMap((run) => run.steps);
  const whole = [all.reduce((a, b) => Math.min(a, b)) - 0.5, all.reduce((a, b) => Math.max(a, b)) + 0.5];
  const controls = drawing.tools(whole, Math.max(...overlays.runs.map((run) => run.steps.length)));
  let charts = [];
  let shown = whole;

  function zoom(limits) {
    shown = drawing.within(limits, whole, shown);
    controls.reset.hidden = shown === whole;
    for (const { chart } of charts) chart.setScale("x", { min: shown[0], max: shown[1] });
  }

  // One axis for the steps of all runs; a step that a run does not have is undefined, a value that is missing null.
  function joined(id) {
    const runs = overlays.runs.filter((run) => run.curves[id]);
    const tables = runs.map((run) => [run.steps, drawing.smoothed(run, run.curves[id], controls.width()) ?? run.curves[id].values]);
    return { runs, columns: uPlot.join(tables) };
  }

  function reader(id, runs, x, columns) {
    const output = document.getElementById(`${id}-readout`);
    const unit = overlays.charts[id].unit;
    const timed = runs.filter((run) => run.curves[id].median !== null);
    const rest = timed.length > 3 ? [] : drawing.beside(timed.map((run) => run.curves[id].median)).map((text, place) => `${timed[place].name} ${text}`);
    return (index) => {
      if (index === null || index === undefined) {
        output.textContent = rest.length ? `median: ${rest.join(", ")}${unit && ` ${unit}`}` : "";
        return;
      }
      const there = runs.map((run, place) => [run.name, columns[place][index]]).filter(([, value]) => value !== undefined && value !== null);
      const texts = drawing.beside(there.map(([, value]) => value));
      output.textContent = `step ${x[index]}: ${there.map(([name], place) => `${name} ${texts[place]}`).join(", ")}${unit && ` ${unit}`}`;
    };
  }

  function build(id, width) {
    const { runs, columns: [x, ...columns] } = joined(id);
    const about = overlays.charts[id];
    const positive = columns.every((values) => known(values).every((value) => value > 0));
    const read = reader(id, runs, x, columns);
    read(null);
    return drawing.lines({
      holder: document.getElementById(id), x, limits: () => shown, sync: "steps", zoom, read,
      lines: runs.map((run, place) => ({
        values: columns[place], stroke: colour(`--${run.tone}`), dash: DASHES[run.number], spanGaps: controls.width() > 0, points: x.length <= 60,
      })),
      log: controls.log.checked && positive, clip: controls.clip.checked, frame: about.frame, fixed: runs.some((run) => run.curves[id].median !== null),
      marks: overlays.marks.filter((mark) => mark.curves.includes(id)),
    }, width);
  }

  function describe(id) {
    const said = overlays.runs.filter((run) => run.curves[id]).map((run) => {
      const values = known(run.curves[id].values);
      return `${run.name} from ${drawing.brief(values[0])} to ${drawing.brief(values[values.length - 1])}`;
    });
    document.getElementById(id).setAttribute("aria-label", `${overlays.charts[id].title}: ${said.join("; ")}`);
  }

  function draw(width) {
    for (const { chart } of charts) chart.destroy();
    charts = names.map((id) => ({ id, holder: document.getElementById(id), chart: build(id, width) }));
  }

  draw();
  names.forEach(describe);
  for (const { id, holder } of charts) drawing.keys(holder, () => charts.find((each) => each.id === id).chart, zoom);
  controls.listen(draw, zoom);
  drawing.follow(draw, () => charts, drawing.PRINT_WIDTH.half);
})();
