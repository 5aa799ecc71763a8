(() => {
  "use strict";
  const data = drawing.page();
  const { colour, figure, known } = drawing;
  const names = Object.keys(data.curves);
  if (!names.length && !data.evals) return;
  const steps = data.steps.length ? data.steps : data.evals.steps;
  const ends = [...steps, ...(data.evals?.steps ?? [])].reduce(([low, high], step) => [Math.min(low, step), Math.max(high, step)], [Infinity, -Infinity]);
  const whole = [ends[0] - 0.5, ends[1] + 0.5];
  const [reset, smoothing, log, clip] = ["reset", "smoothing", "log", "clip"].map((id) => document.getElementById(id));
  const FEW = 60; // points that are shown one by one
  const MANY = 200; // points from which on a line is smoothed at first

  let charts = [];
  let shown = whole;

  function offerWidths() {
    const widths = [200, 60, 15].map((parts) => Math.max(5, round((whole[1] - whole[0]) / parts)));
    for (const width of [...new Set(widths)]) {
      const option = document.createElement("option");
      option.value = width;
      option.textContent = `median of ${width.toLocaleString("en")} steps`;
      smoothing.append(option);
    }
    if (data.steps.length >= MANY) smoothing.value = widths[1];
  }

  function round(value) {
    const power = 10 ** Math.floor(Math.log10(value));
    return Math.round([1, 2, 5, 10].map((factor) => factor * power).reduce((a, b) => (Math.abs(b - value) < Math.abs(a - value) ? b : a)));
  }

  const unitOf = (curve) => (curve.unit ? ` ${curve.unit}` : "");

  function atRest(curve) {
    const values = known(curve.values);
    const middle = curve.median === null ? `last ${drawing.brief(values[values.length - 1])}` : `median ${drawing.brief(curve.median)}`;
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
    const next = limits ? [Math.max(limits[0], whole[0]), Math.min(limits[1], whole[1])] : whole;
    if (next[1] - next[0] < 1 || (next[0] === shown[0] && next[1] === shown[1])) return;
    shown = next[0] === whole[0] && next[1] === whole[1] ? whole : next;
    reset.hidden = shown === whole;
    for (const { chart, overSteps } of charts) if (overSteps) chart.setScale("x", { min: shown[0], max: shown[1] });
  }

  function linesOf(curve) {
    const width = Number(smoothing.value);
    const raw = { values: curve.values, stroke: colour("--line"), points: data.steps.length <= FEW };
    if (!width) return [raw];
    const some = new Array(data.steps.length).fill(null);
    if (data.starts.length) data.starts.forEach((place, bucket) => { some[place] = curve.medians[bucket]; });
    const middle = drawing.smooth(data.steps, data.starts.length ? some : curve.values, width);
    return [{ ...raw, stroke: colour("--faint"), width: 1 }, { values: middle, stroke: colour("--line"), width: 1.75, spanGaps: true }];
  }

  function build(id, width) {
    const curve = data.curves[id];
    const positive = known(curve.values).every((value) => value > 0);
    return drawing.lines({
      holder: document.getElementById(id), x: data.steps, lines: linesOf(curve), limits: () => shown, sync: "steps",
      log: log.checked && positive, clip: clip.checked, frame: curve.frame, fixed: curve.median !== null, median: curve.median,
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
      log: log.checked && known(values).every((value) => value > 0), read: reader("evals", x, curve),
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
    charts = names.map((id) => ({ id, chart: build(id, width), overSteps: true }));
    if (data.evals) charts.push({ id: "evals", chart: buildEvals(width), overSteps: true });
    for (const each of charts) each.holder = document.getElementById(each.id);
    for (const id of names) reader(id, data.steps, data.curves[id])(null);
    if (data.evals) reader("evals", data.evals.steps, { ...data.evals, median: null })(null);
  }

  offerWidths();
  draw();
  for (const id of names) describe(id, data.curves[id], data.steps.length);
  if (data.evals) describe("evals", { ...data.evals, title: "Evaluation loss", median: null }, data.evals.steps.length);
  for (const { id } of charts) {
    drawing.keys(document.getElementById(id), () => charts.find((each) => each.id === id).chart, zoom);
  }
  reset.addEventListener("click", () => zoom(null));
  for (const control of [smoothing, log, clip]) control.addEventListener("change", () => draw());
  drawing.follow(draw, () => charts, drawing.PRINT_WIDTH.half);
})();
