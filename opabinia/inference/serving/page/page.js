// Files are posted one by one, and the predictions are shown beside each. No other request is made.
"use strict";

const byId = (id) => document.getElementById(id);
const COLORS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#999933", "#aa4499"]; // color-blind safe
const MAX_TRIES = 20;
const MIN_WIDTH = 240;
const waiting = [];
let model = { takes: "images", classes: [], tasks: {}, limits: {} };
let busy = false;

function element(kind, properties = {}, ...children) {
  const node = Object.assign(document.createElement(kind), properties);
  node.append(...children);
  return node;
}

async function showModel() {
  model = await (await fetch("model")).json();
  document.title = `${model.name} – Opabinia`;
  byId("name").textContent = model.name;
  const classes = model.classes.length ? `, ${model.classes.length} classes` : model.tasks ? `: ${Object.keys(model.tasks).join(", ")}` : "";
  const gallery = model.gallery ? `, ${model.gallery} images in the gallery` : "";
  // An exported file does not count them.
  const parameters = model.parameters ? `, ${(model.parameters / 1e6).toFixed(1)} million parameters` : "";
  byId("about").textContent = `${model.task}${classes}${gallery}${parameters}, on ${model.device}`;
  byId("invitation").textContent = `Drop ${model.takes} here`;
  byId("files").accept = model.takes === "videos" ? "video/*,image/gif" : "image/*";
  byId("limits").textContent = `Up to ${model.limits.bytes / 1e6} MB and ${model.limits.pixels / 1e6} megapixels each. They stay on the machine that this server runs on.`;
}

function enqueue(files) {
  for (const file of files) {
    const output = element("div", {}, element("p", { className: "soft", textContent: "waiting" }));
    const { box, stage } = preview(file);
    byId("results").prepend(element("article", {}, element("h2", { textContent: file.name || "pasted" }), box, output));
    waiting.push({ file, output, stage });
  }
  work();
}

function preview(file) {
  const stage = element("div", { className: "stage" });
  const isVideo = file.type.startsWith("video/");
  const media = element(isVideo ? "video" : "img", { src: URL.createObjectURL(file) });
  if (isVideo) Object.assign(media, { controls: true, muted: true, loop: true });
  else media.alt = file.name;
  media.addEventListener("error", () => stage.remove()); // a format that browsers cannot show
  media.addEventListener("load", () => {
    if (media.naturalWidth < MIN_WIDTH) {
      stage.classList.add("small");
      media.style.width = `${MIN_WIDTH}px`;
    }
  });
  stage.append(media);
  return { box: element("div", { className: "preview" }, stage), stage };
}

async function work() {
  if (busy) return;
  busy = true;
  for (let item = waiting.shift(); item; item = waiting.shift()) {
    byId("status").textContent = `predicting ${item.file.name || "a file"}; ${waiting.length} waiting`;
    try {
      show(item, await predict(item.file));
    } catch (error) {
      item.output.replaceChildren(element("p", { className: "error", role: "alert", textContent: error.message }));
    }
  }
  byId("status").textContent = "done";
  busy = false;
}

async function predict(file) {
  if (file.size > model.limits.bytes) throw new Error(`larger than ${model.limits.bytes / 1e6} MB`);
  const form = new FormData();
  form.append("file", file, file.name || "pasted");
  for (let tries = 0; tries < MAX_TRIES; tries++) {
    const response = await fetch("predict", { method: "POST", body: form });
    const answer = await response.json();
    if (response.ok) return answer.predictions[0];
    if (response.status !== 503) throw new Error(answer.error);
    await new Promise((resolve) => setTimeout(resolve, 1000));
  }
  throw new Error("the server is busy; try again later");
}

function show({ output, stage }, prediction) {
  const parts = partsOf(prediction, stage);
  for (const name of Object.keys(model.tasks ?? {})) parts.push(element("h3", { textContent: name }), ...partsOf(prediction[name], stage));
  const raw = element("pre", { tabIndex: 0, textContent: JSON.stringify(prediction, null, 1) });
  parts.push(element("details", { open: !parts.length }, element("summary", { textContent: "as JSON" }), raw));
  output.replaceChildren(...parts);
}

function partsOf(prediction, stage) {
  const parts = [];
  if (prediction.top) parts.push(bars(prediction.top));
  if (prediction.classes) parts.push(bars(prediction.classes.map((row) => ({ class: row.class, probability: row.share }))));
  if (prediction.detections) parts.push(detectionList(prediction.detections, stage));
  if (prediction.nearest) parts.push(neighbors(prediction.nearest));
  if (prediction.embedding) parts.push(element("p", { className: "soft", textContent: `an embedding of ${prediction.embedding.length} numbers` }));
  return parts;
}

function bars(top) {
  const rows = top.map((row) => {
    const bar = element("i", { ariaHidden: "true" });
    bar.style.width = `${100 * row.probability}%`;
    const share = `${(100 * row.probability).toFixed(1)} %`;
    return element("li", {}, bar, element("span", { textContent: row.class }), element("span", { textContent: share }));
  });
  return element("ol", { className: "bars" }, ...rows);
}

function detectionList(detections, stage) {
  const list = element("ol", { className: "bars long", tabIndex: 0, ariaLabel: "detections" });
  const image = stage.querySelector("img");
  const draw = () => {
    const shown = detections.filter((detection) => detection.score >= Number(byId("score").value));
    list.replaceChildren(...shown.map(detectionRow));
    if (!shown.length) list.append(element("li", { className: "soft", textContent: "nothing" }));
    if (image) drawBoxes(shown, stage, image);
  };
  byId("min-score").hidden = false;
  byId("score").addEventListener("input", draw);
  if (image && !image.complete) image.addEventListener("load", draw);
  draw();
  return list;
}

function detectionRow({ class: name, score }) {
  const swatch = element("b", { className: "swatch", ariaHidden: "true" });
  swatch.style.background = colorOf(name);
  return element("li", {}, element("span", {}, swatch, name), element("span", { textContent: score.toFixed(2) }));
}

const colorOf = (name) => COLORS[Math.max(0, [model.classes, ...Object.values(model.tasks ?? {})].flat().indexOf(name)) % COLORS.length];

function drawBoxes(shown, stage, image) {
  const svg = (kind, attributes) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", kind);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    return node;
  };
  for (const old of stage.querySelectorAll("svg, .tag")) old.remove();
  if (!image.naturalWidth) return;
  const tags = [];
  const overlay = svg("svg", { viewBox: `0 0 ${image.naturalWidth} ${image.naturalHeight}`, preserveAspectRatio: "none", role: "img", "aria-label": `${shown.length} boxes` });
  for (const { class: name, score, box: [left, top, right, bottom] } of shown) {
    const box = svg("rect", { x: left, y: top, width: right - left, height: bottom - top, stroke: colorOf(name) });
    const title = svg("title", {});
    title.textContent = `${name} ${score.toFixed(2)}`;
    box.append(title);
    overlay.append(box);
    const tag = element("span", { className: "tag", textContent: name, ariaHidden: "true" });
    Object.assign(tag.style, { left: `${(100 * left) / image.naturalWidth}%`, top: `${(100 * top) / image.naturalHeight}%`, background: colorOf(name) });
    tags.push(tag);
  }
  stage.append(overlay, ...tags);
}

function neighbors(nearest) {
  const items = nearest.map(({ path, distance }) => {
    const source = `gallery/${path.split("/").map(encodeURIComponent).join("/")}`;
    const image = element("img", { src: source, alt: path, loading: "lazy" });
    return element("li", {}, image, element("span", { textContent: `${distance.toFixed(3)} ${path}` }));
  });
  return element("ol", { className: "nearest" }, ...items);
}

function listen() {
  const drop = byId("drop");
  byId("files").addEventListener("change", (event) => { enqueue(event.target.files); event.target.value = ""; });
  byId("score").addEventListener("input", () => { byId("score-value").textContent = Number(byId("score").value).toFixed(2); });
  byId("form").addEventListener("submit", (event) => event.preventDefault());
  for (const name of ["dragenter", "dragover"]) document.addEventListener(name, (event) => { event.preventDefault(); drop.classList.add("over"); });
  for (const name of ["dragleave", "drop"]) document.addEventListener(name, () => drop.classList.remove("over"));
  document.addEventListener("drop", (event) => { event.preventDefault(); enqueue(event.dataTransfer.files); });
  document.addEventListener("paste", (event) => enqueue(event.clipboardData.files));
}

listen();
showModel().catch(() => { byId("status").textContent = "the server does not answer"; });
