// Drawing and controls of the interactive portrait; the numbers come from portrait.js.
(function () {
  "use strict";
  const P = window.Portrait, $ = (id) => document.getElementById(id);
  const SLIDERS = ["a1", "a2", "q1", "q2", "u00", "u01", "u10", "u11"], SELECTS = ["loss", "disparity"], HORIZON = 100;
  const YLORBR = [[255, 255, 229], [255, 247, 188], [254, 227, 145], [254, 196, 79], [254, 153, 41], [236, 112, 20], [204, 76, 2], [153, 52, 4], [102, 37, 6]];
  const GROUPS = ["#D55E00", "#0072B2"], PATH = "#0072B2", MARGIN = { left: 44, right: 12, top: 10, bottom: 40 };
  const initial = Object.fromEntries([...SLIDERS, ...SELECTS].map((id) => [id, $(id).value]));
  const expit = (x) => 1 / (1 + Math.exp(-x));
  let box; // the unit square on the canvas, in CSS pixels

  function settings() {
    const v = (id) => parseFloat($(id).value);
    return { a: [v("a1"), v("a2")], q0: [v("q1"), v("q2")], U: [[v("u00"), v("u01")], [v("u10"), v("u11")]], loss: $("loss").value, disparity: $("disparity").value };
  }

  function prepare(canvas, ratio) {
    const width = canvas.clientWidth, height = Math.round(width * ratio), dpr = window.devicePixelRatio || 1;
    canvas.style.height = height + "px";
    canvas.width = Math.round(width * dpr); canvas.height = Math.round(height * dpr);
    const ctx = canvas.getContext("2d");
    ctx.setTransform(dpr, 0, 0, dpr, 0, 0);
    ctx.fillStyle = "#fff"; ctx.fillRect(0, 0, width, height);
    ctx.font = "12px sans-serif";
    return { ctx, width, height };
  }

  function shade(value) {
    const t = Math.min(Math.max(value, 0), 1) * (YLORBR.length - 1), i = Math.min(Math.floor(t), YLORBR.length - 2);
    return YLORBR[i].map((c, k) => Math.round(c + (t - i) * (YLORBR[i + 1][k] - c)));
  }

  function drawShade(ctx, s, rates) {
    const n = 81, image = document.createElement("canvas"), values = [];
    image.width = image.height = n;
    for (let j = 0; j < n; j++) for (let i = 0; i < n; i++) values.push(P.disparity([i / (n - 1), 1 - j / (n - 1)], rates, s.disparity));
    const top = values.reduce((m, x) => Math.max(m, x), 0.02), pixels = image.getContext("2d"), data = pixels.createImageData(n, n);
    values.forEach((value, k) => { data.data.set([...shade(0.75 * value / top), 255], 4 * k); });
    pixels.putImageData(data, 0, 0);
    ctx.imageSmoothingEnabled = true;
    ctx.drawImage(image, box.x, box.y, box.size, box.size);
    return top;
  }

  const at = (q) => [box.x + q[0] * box.size, box.y + (1 - q[1]) * box.size];

  function polyline(ctx, points) {
    ctx.beginPath();
    points.forEach((p, i) => (i ? ctx.lineTo(...p) : ctx.moveTo(...p)));
    ctx.stroke();
  }

  function arrowhead(ctx, from, to) {
    const angle = Math.atan2(to[1] - from[1], to[0] - from[0]);
    ctx.beginPath();
    ctx.moveTo(...to);
    for (const turn of [2.6, -2.6]) ctx.lineTo(to[0] + 7 * Math.cos(angle + turn), to[1] + 7 * Math.sin(angle + turn));
    ctx.closePath(); ctx.fill();
  }

  // In log-odds the flow is the constant vector (shift_1, shift_2), so its streamlines are straight there.
  function drawFlow(ctx, shift) {
    const speed = Math.hypot(...shift);
    if (speed < 1e-6) return;
    const along = shift.map((x) => x / speed), across = [-along[1], along[0]];
    ctx.strokeStyle = ctx.fillStyle = "#404040"; ctx.lineWidth = 0.9;
    for (let k = -9; k <= 9; k++) {
      const point = (t) => at([0, 1].map((g) => expit(0.75 * k * across[g] + t * along[g])));
      const points = [];
      for (let t = -10; t <= 10; t += 0.1) points.push(point(t));
      polyline(ctx, points);
      for (const t of [-3.2, -1.3, 0.6, 2.5]) { // arrowheads where there is room for them
        const tip = point(t + 0.35 * (k % 2)), tail = point(t + 0.35 * (k % 2) - 0.1);
        if (Math.hypot(tip[0] - tail[0], tip[1] - tail[1]) > 1.5) arrowhead(ctx, tail, tip);
      }
    }
  }

  function drawPath(ctx, path) {
    ctx.strokeStyle = ctx.fillStyle = PATH; ctx.lineWidth = 2;
    polyline(ctx, path.q.map(at));
    for (const q of path.q) { ctx.beginPath(); ctx.arc(...at(q), 2, 0, 7); ctx.fill(); }
    ctx.beginPath(); ctx.arc(...at(path.q[HORIZON]), 5, 0, 7); ctx.fill();
    ctx.beginPath(); ctx.arc(...at(path.q[0]), 6, 0, 7); ctx.fillStyle = "#fff"; ctx.fill(); ctx.stroke();
  }

  function drawAxes(ctx) {
    ctx.fillStyle = ctx.strokeStyle = "#222"; ctx.lineWidth = 1;
    ctx.strokeRect(box.x, box.y, box.size, box.size);
    polyline(ctx, [at([0, 0]), at([1, 1])]);
    ctx.textAlign = "center";
    for (const t of [0, 0.5, 1]) ctx.fillText(String(t), at([t, 0])[0], box.y + box.size + 15);
    ctx.fillText("qualification rate, group 1", box.x + box.size / 2, box.y + box.size + 32);
    ctx.textAlign = "right";
    for (const t of [0, 0.5, 1]) ctx.fillText(String(t), box.x - 5, at([0, t])[1] + 4);
    ctx.save(); ctx.translate(12, box.y + box.size / 2); ctx.rotate(-Math.PI / 2); ctx.textAlign = "center"; ctx.fillText("qualification rate, group 2", 0, 0); ctx.restore();
  }

  function drawCurves(path) {
    const { ctx, width, height } = prepare($("curves"), 0.42), m = { left: 30, right: 88, top: 10, bottom: 30 };
    const x = (h) => m.left + (h / HORIZON) * (width - m.left - m.right), y = (v) => m.top + (1 - v) * (height - m.top - m.bottom);
    ctx.strokeStyle = "#bbb"; ctx.fillStyle = "#222"; ctx.lineWidth = 1; ctx.textAlign = "right";
    for (const v of [0, 0.5, 1]) { polyline(ctx, [[m.left, y(v)], [width - m.right, y(v)]]); ctx.fillText(String(v), m.left - 4, y(v) + 4); }
    ctx.textAlign = "center";
    for (const h of [0, 50, 100]) ctx.fillText(String(h), x(h), height - 14);
    ctx.fillText("step", x(50) + 28, height - 14);
    ctx.lineWidth = 2;
    const series = [["q1", path.q.map((q) => q[0]), GROUPS[0], []], ["q2", path.q.map((q) => q[1]), GROUPS[1], [6, 3]], ["loss", path.loss, "#222", []], ["disparity", path.disparity, "#222", [2, 3]]];
    series.forEach(([name, values, color, dash], i) => {
      ctx.strokeStyle = ctx.fillStyle = color; ctx.setLineDash(dash);
      polyline(ctx, values.map((v, h) => [x(h), y(Math.min(Math.max(v, 0), 1))]));
      const line = m.top + 12 + 16 * i;
      polyline(ctx, [[width - m.right + 8, line - 4], [width - m.right + 22, line - 4]]);
      ctx.setLineDash([]); ctx.textAlign = "left"; ctx.fillText(name, width - m.right + 26, line);
    });
  }

  function write(s, path, shift) {
    const mean = (xs) => xs.reduce((sum, x) => sum + x, 0) / xs.length, q = (g) => path.q.map((state) => state[g]);
    const rows = [["loss", path.loss], ["disparity", path.disparity], ["q<sub>1</sub>", q(0).slice(0, HORIZON)], ["q<sub>2</sub>", q(1).slice(0, HORIZON)]];
    $("numbers").innerHTML = rows.map(([name, xs]) => `<tr><th scope="row">${name}</th>` + [xs[0], mean(xs), xs[HORIZON - 1]].map((v) => `<td data-value="${v}">${v.toFixed(3)}</td>`).join("") + "</tr>").join("");
    $("headline").textContent = `Mean loss ${mean(path.loss).toFixed(3)}, mean disparity ${mean(path.disparity).toFixed(3)} over ${HORIZON} steps`;
    const says = shift.map((x, g) => `group ${g + 1} ${Math.abs(x) < 5e-4 ? "stays" : x > 0 ? "rises" : "falls"} (log-odds ${x >= 0 ? "+" : "−"}${Math.abs(x).toFixed(3)} a step)`);
    const neutral = P.neutralThreshold(s.U);
    $("sentence").textContent = `${says[0][0].toUpperCase()}${says[0].slice(1)}, ${says[1]}. ` + (neutral === null ? "No threshold is neutral under these payoffs." : `Neutral threshold: ${neutral.toFixed(3)}.`);
    $("orderings").textContent = P.brokenOrderings(s.U).map((sentence) => `Unusual payoffs: ${sentence}.`).join(" ");
    for (const output of document.querySelectorAll("#controls output")) output.textContent = parseFloat($(output.htmlFor[0]).value).toFixed(output.htmlFor[0][0] === "a" ? 3 : 2);
    $("flow").setAttribute("aria-label", `Phase portrait. ${$("sentence").textContent} ${$("headline").textContent}.`);
  }

  function render() {
    const s = settings(), rates = P.accept(s.a), shift = P.logOddsShift(rates, s.U), path = P.rollout(s.q0, s.a, s.U, s.loss, s.disparity, HORIZON);
    const { ctx, width, height } = prepare($("flow"), 1);
    box = { x: MARGIN.left, y: MARGIN.top, size: Math.min(width - MARGIN.left - MARGIN.right, height - MARGIN.top - MARGIN.bottom) };
    $("darkest").textContent = drawShade(ctx, s, rates).toFixed(2);
    ctx.save(); ctx.beginPath(); ctx.rect(box.x, box.y, box.size, box.size); ctx.clip();
    drawFlow(ctx, shift);
    ctx.restore();
    drawAxes(ctx); drawPath(ctx, path); drawCurves(path); write(s, path, shift);
  }

  function moveStart(q1, q2) {
    [["q1", q1], ["q2", q2]].forEach(([id, v]) => { $(id).value = Math.min(Math.max(v, 0.01), 0.99); });
    render();
  }

  function pointed(event) {
    const rect = $("flow").getBoundingClientRect();
    moveStart((event.clientX - rect.left - box.x) / box.size, 1 - (event.clientY - rect.top - box.y) / box.size);
  }

  $("flow").addEventListener("pointerdown", (event) => { pointed(event); if (event.pointerType === "mouse") $("flow").setPointerCapture(event.pointerId); });
  $("flow").addEventListener("pointermove", (event) => { if (event.pointerType === "mouse" && event.buttons) pointed(event); });
  $("flow").addEventListener("keydown", (event) => {
    const move = { ArrowLeft: [-0.02, 0], ArrowRight: [0.02, 0], ArrowDown: [0, -0.02], ArrowUp: [0, 0.02] }[event.key];
    if (!move) return;
    event.preventDefault(); event.stopPropagation();
    moveStart(parseFloat($("q1").value) + move[0], parseFloat($("q2").value) + move[1]);
  });
  $("controls").addEventListener("input", render);
  for (const button of document.querySelectorAll("#controls button[data-a]")) button.addEventListener("click", () => {
    const wanted = button.dataset.a === "neutral" ? P.neutralThreshold(settings().U) : parseFloat(button.dataset.a);
    if (wanted === null) return;
    for (const id of ["a1", "a2"]) { $(id).step = "any"; $(id).value = wanted; }
    render();
    for (const id of ["a1", "a2"]) $(id).addEventListener("input", () => { $(id).step = "0.005"; }, { once: true });
  });
  $("reset").addEventListener("click", () => { for (const [id, value] of Object.entries(initial)) $(id).value = value; render(); });
  window.addEventListener("resize", render);
  render();
})();
