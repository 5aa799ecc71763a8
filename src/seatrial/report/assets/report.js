(() => {
  "use strict";
  const data = drawing.page();
  const { colour, known } = drawing;
  const names = Object.keys(data.curves);
  if (!names.length && !data.evals) return;
  const steps = data.steps.length ? data.steps : data.evals.steps;
  const ends = [...steps, ...(data.evals?.steps ?? [])].reduce(([low, high], step) => [Math.min(low, step), Math.max(high, step)], [Infinity, -Infinity]);
  const whole = [ends[0] - 0.5, ends[1] + 0.5];
  const FEW = 60; // points that are shown one by one
  const controls = drawing.tools(whole, data.steps.length);

  let charts = [];
  let shown = whole;

  const unitOf = (curve) => (curve.unit ? ` ${curve.unit}` : "");

  function atRest(curve) {
    const values = known(curve.values);
    const [first, last] = [values[0], values[values.length - 1]];
    const middle = curve.median === null ? `last ${drawing.beside([last, first])[0]}` : `median ${drawing.beside([curve.median, first])[0]}`;
    return `${middle}${unitOf(curve)}`;
  }

  function reader(id, x, curve) {
    const output = document.getElementById(`${id}-readout`);
    return (index) => {
      if (index === null || index === undefined) {
        output.textContent = atRest(curve);
        return;
      }
      const value = curve.values[index];
      const text = value === null || value === undefined ? "no finite value" : drawing.show(value) + unitOf(curve);
      output.textContent = `step ${x[index]}: ${text}`;
    };
  }

  function zoom(limits) {
    shown = drawing.within(limits, whole, shown);
    controls.reset.hidden = shown === whole;
    for (const { chart } of charts) chart.setScale("x", { min: shown[0], max: shown[1] });
  }

  function linesOf(curve) {
    const raw = { values: curve.values, stroke: colour("--line"), points: data.steps.length <= FEW };
    const middle = drawing.smoothed(data, curve, controls.width());
    if (!middle) return [raw];
    return [{ ...raw, stroke: colour("--faint"), width: 1 }, { values: middle, stroke: colour("--line"), width: 1.75, spanGaps: true }];
  }

  function build(id, width) {
    const curve = data.curves[id];
    const positive = known(curve.values).every((value) => value > 0);
    return drawing.lines({
      holder: document.getElementById(id), x: data.steps, lines: linesOf(curve), limits: () => shown, sync: "steps",
      log: controls.log.checked && positive, clip: controls.clip.checked, frame: curve.frame, fixed: curve.median !== null, median: curve.median,
      targets: curve.targets, spans: curve.median === null ? [] : data.left_out,
      marks: data.marks.filter((mark) => !mark.curves.length || mark.curves.includes(id)),
      read: reader(id, data.steps, curve), zoom,
    }, width);
  }

  function buildEvals(width) {
    const { steps: x, values, targets } = data.evals;
    const curve = { values, targets, median: null };
    return drawing.lines({
      holder: document.getElementById("evals"), x, limits: () => shown, sync: "steps", targets, zoom,
      lines: [{ values, stroke: colour("--line"), points: x.length <= FEW }],
      log: controls.log.checked && known(values).every((value) => value > 0), read: reader("evals", x, curve),
    }, width);
  }

  function describe(id, curve, count) {
    const values = known(curve.values);
    const [first, last] = [values[0], values[values.length - 1]].map(drawing.show);
    const marks = data.marks.filter((mark) => mark.curves.includes(id)).map((mark) => `; ${mark.text}`).join("");
    const targets = curve.targets.map((target) => `; ${target.text}`).join("");
    const text = `${curve.title}: ${count.toLocaleString("en")} points, first ${first}, last ${last}; ${atRest(curve)}${targets}${marks}`;
    document.getElementById(id).setAttribute("aria-label", text);
  }

  function draw(width) {
    for (const { chart } of charts) chart.destroy();
    charts = names.map((id) => ({ id, chart: build(id, width) }));
    if (data.evals) charts.push({ id: "evals", chart: buildEvals(width) });
    for (const each of charts) each.holder = document.getElementById(each.id);
    for (const id of names) reader(id, data.steps, data.curves[id])(null);
    if (data.evals) reader("evals", data.evals.steps, { ...data.evals, median: null })(null);
  }

  draw();
  for (const id of names) describe(id, data.curves[id], data.steps.length);
  if (data.evals) describe("evals", { ...data.evals, title: "Evaluation loss", median: null }, data.evals.steps.length);
  for (const { id } of charts) {
    drawing.keys(document.getElementById(id), () => charts.find((each) => each.id === id).chart, zoom);
  }
  controls.listen(draw, zoom);
  drawing.follow(draw, () => charts, drawing.PRINT_WIDTH.half);
})();
