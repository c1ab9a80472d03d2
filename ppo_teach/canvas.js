// Draws the frames that Python computed: picks the one that belongs to the slider positions, and nothing else.
// No formula of the course lives here. The page that hosts it may have a kernel or not.

const FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif';
const TITLE = `600 15px ${FONT}`, LABEL = `13px ${FONT}`, SMALL = `12px ${FONT}`;
const INK = "#1A1A1A";
const SEND_EVERY = 60; // ms between position messages to the kernel; the picture never waits for them

const CSS = `
.ppo-canvas { width: 100%; max-width: 900px; padding: 12px 14px 10px; border: 1px solid #d9d9d9; border-radius: 8px;
  background: #fff; color: ${INK}; font: 14px/1.4 ${FONT}; color-scheme: light; }
.ppo-canvas, .ppo-canvas * { box-sizing: border-box; }
.ppo-canvas canvas { display: block; width: 100%; }
.ppo-words { margin: 4px 0 10px; padding: 7px 12px; background: #f3f6f9; border-left: 4px solid #0072B2;
  border-radius: 0 4px 4px 0; font-size: 15px; font-variant-numeric: tabular-nums; }
.ppo-sliders { display: grid; grid-template-columns: max-content minmax(120px, 1fr) max-content;
  gap: 4px 14px; align-items: center; }
.ppo-symbol { display: inline-block; min-width: 1.3em; margin-right: 4px;
  font: italic 17px Georgia, "DejaVu Serif", serif; }
.ppo-canvas output { text-align: right; font-weight: 600; font-variant-numeric: tabular-nums; white-space: nowrap; }
.ppo-canvas input[type=range] { width: 100%; height: 26px; margin: 0; accent-color: #0072B2; cursor: pointer; }
.ppo-choice, .ppo-buttons { display: flex; flex-wrap: wrap; gap: 4px 6px; padding: 2px 0; }
.ppo-choice { grid-column: 2 / 4; } .ppo-buttons { margin-top: 6px; }
.ppo-group { padding: 4px 6px 0 0; color: #595959; } .ppo-buttons + .ppo-sliders { margin-top: 10px; }
.ppo-choice label { position: relative; }
.ppo-choice input { position: absolute; inset: 0; margin: 0; opacity: 0; cursor: pointer; }
.ppo-choice span, .ppo-canvas button { display: inline-block; padding: 3px 12px; background: #fff; color: ${INK};
  border: 1px solid #8c8c8c; border-radius: 14px; font: 14px/1.4 ${FONT}; cursor: pointer; }
.ppo-choice input:checked + span { background: #0072B2; border-color: #0072B2; color: #fff; }
.ppo-canvas button:hover, .ppo-choice input:hover + span { border-color: #0072B2; box-shadow: 0 0 0 1px #0072B2; }
.ppo-canvas input[type=range]:focus-visible, .ppo-canvas button:focus-visible, .ppo-choice input:focus-visible + span {
  outline: 3px solid #E69F00; outline-offset: 1px; border-radius: 14px; }
.ppo-canvas .ppo-caption { margin: 8px 0 0; color: #595959; font-size: 13px; }
.ppo-error { margin: 6px 0; padding: 8px 12px; background: #fdecea; border-left: 4px solid #b00020; color: #7a0016; }`;

function node(tag, parent, attributes = {}, text = "") {
  const made = document.createElement(tag);
  Object.entries(attributes).forEach(([key, value]) => made.setAttribute(key, value));
  made.textContent = text;
  return parent.appendChild(made);
}

// ---- picking a frame: a size of 1 along a slider's axis means "the same for every position of it" ------------------
function start(entry, position) {
  let index = 0;
  entry.dims.forEach((size, axis) => { index = index * size + (size === 1 ? 0 : position[axis]); });
  return index * entry.n;
}

function pick(state, key) {
  const entry = state.index.entries[key];
  const from = (entry.offset || 0) + start(entry, state.position), source = entry.texts || state.numbers;
  return source.slice(from, from + entry.n);
}

// ---- small drawing tools -----------------------------------------------------------------------------------------
function write(ctx, text, x, y, { color = INK, align = "left", font = LABEL, halo = false, turn = 0 } = {}) {
  ctx.save(); ctx.translate(x, y); ctx.rotate(turn);
  ctx.font = font; ctx.textAlign = align; ctx.textBaseline = "middle"; ctx.setLineDash([]);
  ctx.lineWidth = 3.5; ctx.lineJoin = "round"; ctx.strokeStyle = "rgba(255, 255, 255, .9)"; ctx.fillStyle = color;
  if (halo) ctx.strokeText(text, 0, 0);
  ctx.fillText(text, 0, 0); ctx.restore();
}

function stroke(ctx, { color = INK, width = 1, dash = [] }, ...spots) {
  ctx.strokeStyle = color; ctx.lineWidth = width; ctx.setLineDash(dash); ctx.lineJoin = "round";
  ctx.beginPath();
  spots.forEach((spot, i) => spot && (spots[i - 1] ? ctx.lineTo(...spot) : ctx.moveTo(...spot)));
  ctx.stroke();
}

function wrap(ctx, text, width) {
  const rows = [];
  for (const word of text.split(" ")) {
    const longer = `${rows.at(-1)} ${word}`;
    if (rows.length && ctx.measureText(longer).width <= width) rows.splice(-1, 1, longer); else rows.push(word);
  }
  return rows;
}

const HATCH = { "/": "M-2 2L2-2M0 8L8 0M6 10L10 6", "\\": "M-2 6L2 10M0 0L8 8M6-2L10 2", x: "M0 0L8 8M0 8L8 0",
  "+": "M1 4H7M4 1V7", "-": "M1 4H7", ".": "M1.5 2H3M5.5 6H7" };

function hatched(ctx, color, hatch) {
  if (!hatch) return color;
  const tile = document.createElement("canvas"), pen = tile.getContext("2d");
  tile.width = tile.height = 16;
  pen.scale(2, 2); pen.fillStyle = color; pen.fillRect(0, 0, 8, 8);
  pen.strokeStyle = "rgba(255, 255, 255, .8)"; pen.lineWidth = 1.2; pen.stroke(new Path2D(HATCH[hatch]));
  const pattern = ctx.createPattern(tile, "repeat");
  pattern.setTransform(new DOMMatrix().scale(0.5));
  return pattern;
}

const CROSS = "M-1.2-.4H-.4V-1.2H.4V-.4H1.2V.4H.4V1.2H-.4V.4H-1.2Z";
const MARKER = { o: "M1 0A1 1 0 1 1-1 0A1 1 0 1 1 1 0Z", s: "M-.9-.9H.9V.9H-.9Z", D: "M0-1.3L1.3 0L0 1.3L-1.3 0Z",
  "^": "M0-1.2L1.15 1H-1.15Z", v: "M0 1.2L1.15-1H-1.15Z", P: CROSS, X: CROSS };

function marker(ctx, { marker: shape, size, color }, x, y) {
  ctx.save(); ctx.translate(x, y); ctx.scale(size / 2, size / 2); ctx.rotate(shape === "X" ? Math.PI / 4 : 0);
  ctx.fillStyle = color; ctx.strokeStyle = "#fff"; ctx.lineWidth = 0.5; ctx.setLineDash([]);
  const path = new Path2D(MARKER[shape]);
  ctx.stroke(path); ctx.fill(path); ctx.restore();
}

function declutter(labels, gap, low, high) { // end-of-line labels pushed apart, kept inside the panel
  labels.sort((a, b) => a.y - b.y);
  labels.forEach((label, i) => { label.y = Math.max(label.y, i ? labels[i - 1].y + gap : low); });
  for (let i = labels.length - 1; i >= 0; i--) labels[i].y = Math.min(labels[i].y, labels[i + 1]?.y - gap || high);
}

// ---- one drawer per kind of mark; `at` turns data into pixels ----------------------------------------------------
const real = (...values) => values.every(Number.isFinite);

const DRAW = {
  line(ctx, { style }, { x, y }, at) {
    stroke(ctx, style, ...Array.from(y, (v, i) => (real(x[i], v) ? [at.x(x[i]), at.y(v)] : null)));
    if (style.marker) DRAW.points(ctx, { style }, { x, y }, at);
  },
  points: (ctx, { style }, { x, y }, at) => y.forEach((v, i) => real(x[i], v) && marker(ctx, style, at.x(x[i]), at.y(v))),
  bars(ctx, { style }, { x, y, base, values }, at) {
    const hatches = style.hatch === "sign" ? ["-", "+"] : [style.hatch, style.hatch];
    const fills = hatches.map((hatch) => hatched(ctx, style.color, hatch));
    y.forEach((v, i) => {
      if (!real(x[i], v, base[i])) return;
      const [left, right] = [-1, 1].map((side) => at.x(x[i] + (side * style.width) / 2)), top = at.y(v), foot = at.y(base[i]);
      ctx.globalAlpha = style.alpha; ctx.fillStyle = fills[Number(v >= base[i])];
      ctx.fillRect(left, Math.min(top, foot), right - left, Math.max(Math.abs(foot - top), 1)); ctx.globalAlpha = 1;
      const inside = Math.min(Math.max(top, at.box.top + 8), at.box.bottom - 8), lift = top <= foot ? -9 : 10;
      if (values) write(ctx, values[i], (left + right) / 2, inside + lift, { align: "center", font: SMALL, halo: true });
    });
  },
  band(ctx, { style }, { lo, hi }, at) {
    const { left, right, top, bottom } = at.box;
    ctx.fillStyle = hatched(ctx, style.color, style.hatch); ctx.globalAlpha = style.alpha;
    lo.forEach((v, i) => {
      if (style.axis === "x") ctx.fillRect(at.x(v), top, at.x(hi[i]) - at.x(v), bottom - top);
      else ctx.fillRect(left, at.y(hi[i]), right - left, at.y(v) - at.y(hi[i]));
    });
    ctx.globalAlpha = 1;
  },
  guide(ctx, { style }, { at: places }, at) {
    const { left, right, top, bottom } = at.box, look = { color: style.ink, font: SMALL, halo: true };
    places.filter((v) => real(v)).forEach((v) => {
      const x = at.x(v), y = at.y(v), upright = style.axis === "x";
      stroke(ctx, style, ...(upright ? [[x, top], [x, bottom]] : [[left, y], [right, y]]));
      if (upright) write(ctx, style.label, x + 5, top + 9, look);
      else write(ctx, style.label, right - 4, y - 9, { ...look, align: "right" });
    });
  },
  cells(ctx, { style }, { z, values }, at) {
    z.forEach((v, i) => {
      const column = i % style.columns, row = Math.floor(i / style.columns);
      const strength = real(v) ? Math.min(Math.abs(v) / style.vmax, 1) : 0;
      const x = at.x(column - 0.47), y = at.y(row - 0.47), w = at.x(column + 0.47) - x, h = at.y(row + 0.47) - y;
      ctx.fillStyle = "#f2f2f2"; ctx.fillRect(x, y, w, h);
      ctx.globalAlpha = strength; ctx.fillStyle = style.color; ctx.fillRect(x, y, w, h); ctx.globalAlpha = 1;
      const color = style.light && strength > 0.6 ? "#fff" : INK;
      if (values) write(ctx, values[i], x + w / 2, y + h / 2, { align: "center", color, font: SMALL });
    });
  },
  text(ctx, { style }, { x, y, values }, at) {
    const { ink: color, align } = style;
    y.forEach((v, i) => write(ctx, values[i], at.x(x[i]), at.y(v), { color, align, halo: true }));
  },
};

// ---- a panel: frame, ticks, marks, labels ------------------------------------------------------------------------
function measure(ctx, panel, marks, area) { // where the axes go inside the area; the same for every frame
  ctx.font = LABEL;
  const widest = (texts) => Math.max(0, ...texts.map((text) => ctx.measureText(text).width));
  const left = area.x + 28 + widest(panel.yticks.map((tick) => tick[1]));
  const labels = (where) => marks.filter((mark) => mark.label_at === where);
  const right = area.x + area.w - 18 - widest(labels("end").map((mark) => mark.style.label));
  let x = left, row = 0;
  const keys = labels("key").map((mark) => {
    const width = 44 + ctx.measureText(mark.style.label).width;
    if (x > left && x + width > area.x + area.w) { x = left; row += 1; }
    x += width;
    return { mark, x: x - width, row };
  });
  const slot = (right - left) / Math.max(panel.xticks.length, 1), wide = widest(panel.xticks.map((tick) => tick[1]));
  const turned = wide > slot - 4, foot = (panel.xlabel ? 24 : 4) + (turned ? Math.min(wide, 90) * 0.64 + 16 : 22);
  ctx.font = TITLE;
  const title = wrap(ctx, panel.title, area.x + area.w - 12 - left);
  const head = 18 + 19 * title.length + (keys.length ? 20 * row + 22 : 0);
  return { left, right, head, foot, title, keys, turned };
}

function drawPanel(ctx, panel, marks, box, state) {
  const { left, right, top, bottom, area } = box, drawn = {}, ends = [];
  const scale = (lo, hi, from, to) => (v) => from + ((v - lo) / (hi - lo)) * (to - from);
  const at = { x: scale(...panel.xlim, left, right), y: scale(...panel.ylim, bottom, top), box };
  box.title.forEach((text, i) => write(ctx, text, left, area.y + 14 + 19 * i, { font: TITLE }));
  for (const { mark, x, row } of box.keys) drawKey(ctx, mark, x, area.y + 15 + 19 * box.title.length + 20 * row);
  ctx.save(); ctx.beginPath(); ctx.rect(left - 6, top - 6, right - left + 12, bottom - top + 12); ctx.clip();
  for (const mark of marks) {
    const data = Object.fromEntries(mark.fields.map((field) => [field, pick(state, `${mark.name}.${field}`)]));
    DRAW[mark.kind](ctx, mark, data, at);
    mark.fields.forEach((field) => { drawn[`${mark.name}.${field}`] = Array.from(data[field]); });
    let last = mark.label_at === "end" ? data.y.length - 1 : -1;
    while (last >= 0 && !real(data.x[last], data.y[last])) last -= 1;
    if (last >= 0) ends.push({ style: mark.style, x: Math.min(at.x(data.x[last]), right), y: at.y(data.y[last]) });
  }
  ctx.restore();
  if (panel.zero) stroke(ctx, {}, [left, at.y(0)], [right, at.y(0)]);
  stroke(ctx, {}, [left, top], [left, bottom], [right, bottom]);
  for (const [value, text] of panel.yticks) {
    stroke(ctx, {}, [left - 4, at.y(value)], [left, at.y(value)]);
    write(ctx, text, left - 7, at.y(value), { align: "right" });
  }
  for (const [value, text] of panel.xticks) {
    stroke(ctx, {}, [at.x(value), bottom], [at.x(value), bottom + 4]);
    if (box.turned) write(ctx, text, at.x(value) + 4, bottom + 10, { align: "right", turn: -0.7 });
    else write(ctx, text, at.x(value), bottom + 15, { align: "center" });
  }
  write(ctx, panel.xlabel, (left + right) / 2, area.y + area.h - 12, { align: "center" });
  write(ctx, panel.ylabel, area.x + 9, (top + bottom) / 2, { align: "center", turn: -Math.PI / 2 });
  declutter(ends, 16, top, bottom);
  for (const { style, x, y } of ends) write(ctx, style.label, x + 8, y, { color: style.ink, halo: true });
  return drawn;
}

function drawKey(ctx, { kind, style }, x, y) {
  if (kind === "line") stroke(ctx, style, [x, y], [x + 24, y]);
  if (kind === "bars" || kind === "band") {
    ctx.fillStyle = hatched(ctx, style.color, style.hatch === "sign" ? "+" : style.hatch);
    ctx.globalAlpha = style.alpha; ctx.fillRect(x, y - 6, 24, 12); ctx.globalAlpha = 1;
  }
  if (style.marker) marker(ctx, style, x + 12, y);
  write(ctx, style.label, x + 30, y, { color: style.ink });
}

function drawAll(state, canvas) {
  const { panels, height, ...spec } = state.spec, width = Math.max(canvas.parentNode.clientWidth - 28, 260);
  const columns = Math.max(1, Math.min(spec.columns, panels.length, Math.floor(width / 270))), rows = Math.ceil(panels.length / columns);
  const sharp = (window.devicePixelRatio || 1) * (canvas.currentCSSZoom || 1), size = [Math.round(width * sharp), Math.round(rows * height * sharp)];
  if (canvas.width !== size[0] || canvas.height !== size[1]) [canvas.width, canvas.height] = size;
  canvas.style.height = `${rows * height}px`;
  const ctx = canvas.getContext("2d");
  ctx.setTransform(sharp, 0, 0, sharp, 0, 0); ctx.fillStyle = "#fff"; ctx.fillRect(0, 0, width, rows * height);
  const marks = (i) => spec.marks.filter((mark) => mark.panel === i);
  const boxes = panels.map((panel, i) => { // the last panel takes what is left of its row
    const w = (width - 16 * (columns - 1)) / columns, x = (i % columns) * (w + 16);
    const area = { x, y: Math.floor(i / columns) * height, w: i === panels.length - 1 ? width - x : w, h: height };
    return { ...measure(ctx, panel, marks(i), area), area };
  });
  return Object.assign({}, ...panels.map((panel, i) => { // axes of a row start and end at the same height
    const row = boxes.filter((box) => box.area.y === boxes[i].area.y);
    const top = boxes[i].area.y + Math.max(...row.map((box) => box.head));
    const bottom = boxes[i].area.y + height - Math.max(...row.map((box) => box.foot));
    return drawPanel(ctx, panel, marks(i), { ...boxes[i], top, bottom }, state);
  }));
}

// ---- sliders, choices, buttons -------------------------------------------------------------------------------------
let serial = 0;
const QUIET = { "data-lm-suppress-shortcuts": "true" }; // else JupyterLab takes the arrow keys for itself

function addSlider(slider, box, move) { // returns a function that shows a position
  const id = `ppo-canvas-${++serial}`;
  const name = node(slider.choice ? "span" : "label", box, slider.choice ? { id } : { for: id });
  node("span", name, { class: "ppo-symbol" }, slider.symbol).after(slider.label);
  if (slider.choice) {
    const group = node("div", box, { class: "ppo-choice", role: "radiogroup", "aria-labelledby": id });
    const radios = slider.texts.map((text, place) => {
      const label = node("label", group);
      const radio = node("input", label, { type: "radio", name: `${id}-choice`, ...QUIET });
      node("span", label, {}, text);
      radio.addEventListener("change", () => move(place));
      return radio;
    });
    return (place) => { radios[place].checked = true; };
  }
  const aria = { "aria-label": `${slider.label} ${slider.symbol}`.trim(), "data-slider": slider.name, ...QUIET };
  const input = node("input", box, { type: "range", id, min: 0, max: slider.texts.length - 1, ...aria });
  const output = node("output", box, { for: id, "aria-hidden": "true" });
  output.style.minWidth = `${Math.max(...slider.texts.map((text) => text.length))}ch`;
  input.addEventListener("input", () => move(Number(input.value)));
  return (place) => {
    input.value = place;
    input.setAttribute("aria-valuetext", output.textContent = slider.texts[place]);
  };
}

function render({ model, el }) {
  const spec = model.get("spec");
  const root = node("div", el, { class: "ppo-canvas", role: "group", "aria-label": spec.name });
  node("style", root, {}, CSS);
  const canvas = node("canvas", root, { role: "img", "aria-label": spec.alt });
  const words = node("div", root, { class: "ppo-words", role: "status", "aria-live": "polite" });
  for (const [title, names] of spec.actions) { // what only the kernel can do: a click is a message
    const group = node("div", root, { class: "ppo-buttons", role: "group", "aria-label": title });
    if (title) node("span", group, { class: "ppo-group" }, title);
    for (const name of names) {
      node("button", group, { type: "button", ...QUIET }, name).addEventListener("click", () => model.send({ action: name }));
    }
  }
  const box = node("div", root, { class: "ppo-sliders" }), row = node("div", root, { class: "ppo-buttons" });
  node("p", root, { class: "ppo-caption" }, spec.caption);
  const trouble = node("div", root, { class: "ppo-error", role: "alert" });
  let waiting = 0, told = 0, timer = null, bytes = null, numbers = null, room = {};

  const say = (part, position) => {
    if (typeof part === "string") return document.createTextNode(part);
    const bold = document.createElement("b"), { texts } = part.texts ? part : spec.sliders[part.slider];
    bold.textContent = texts[part.texts ? start(part, position) : position[part.slider]];
    return bold;
  };
  const draw = () => {
    waiting = 0;
    let problem = model.get("error");
    try {
      if (bytes !== model.get("frames")) {
        bytes = model.get("frames");
        numbers = new Float32Array(bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength));
      }
      const position = model.get("position"), index = model.get("index");
      const panels = spec.panels.map((panel, i) => ({ ...panel, ...(index.axes || {})[i] })); // a live run outgrows its axes
      const marks = drawAll({ spec: { ...spec, panels }, numbers, index, position }, canvas);
      words.replaceChildren(...index.words.map((part) => say(part, position)));
      words.hidden = !index.words.length;
      if (room.width !== root.clientWidth) room = { width: root.clientWidth, height: 0 };
      words.style.minHeight = `${room.height}px`; // a sentence one line shorter must not move the sliders
      room.height = Math.max(room.height, words.offsetHeight);
      show.forEach((showAt, i) => showAt(position[i]));
      root.drawn = { position: [...position], words: words.textContent, marks }; // the browser tests read this
      root.dataset.frame = 1 + Number(root.dataset.frame || 0);
    } catch (error) { problem = `The picture could not be drawn. ${error}`; }
    if (trouble.textContent !== problem) trouble.textContent = problem;
    trouble.hidden = !problem;
  };
  const later = () => { waiting ||= requestAnimationFrame(draw); };
  const tell = () => { // the latest position wins; without a kernel the picture moves all the same
    clearTimeout(timer);
    const wait = told + SEND_EVERY - performance.now();
    if (wait > 0) { timer = setTimeout(tell, wait); return; }
    told = performance.now();
    try { Promise.resolve(model.send({ position: model.get("position") })).catch(() => {}); } catch { /* no kernel */ }
  };
  const go = (places) => {
    model.set("position", model.get("position").map((old, i) => places[i] ?? old));
    later(); tell();
  };
  const show = spec.sliders.map((slider, i) => addSlider(slider, box, (place) => go({ [i]: place })));
  for (const { name, position } of spec.actions.length ? [] : spec.presets) {
    node("button", row, { type: "button", ...QUIET }, name).addEventListener("click", () => go(position));
  }
  const traits = ["position", "index", "frames", "error"], observer = new ResizeObserver(later);
  traits.forEach((trait) => model.on(`change:${trait}`, later));
  observer.observe(root);
  draw();
  return () => {
    traits.forEach((trait) => model.off(`change:${trait}`, later));
    observer.disconnect(); clearTimeout(timer); cancelAnimationFrame(waiting);
  };
}

export default { render };
