// Pictures are posted one by one, and what the server says of each is shown beside it. Nothing else is asked for.
"use strict";

const byId = (id) => document.getElementById(id);
const COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#999933", "#aa4499"]; // told apart by most eyes
const TRIES = 20;
const WIDTH_OF_SMALL = 240;
const waiting = [];
let model = { takes: "pictures", classes: [], limits: {} };
let busy = false;

function made(kind, properties = {}, ...children) {
  const node = Object.assign(document.createElement(kind), properties);
  node.append(...children);
  return node;
}

async function greet() {
  model = await (await fetch("model")).json();
  document.title = `${model.name} – Opabinia`;
  byId("name").textContent = model.name;
  const classes = model.classes.length ? `, ${model.classes.length} classes` : "";
  const gallery = model.gallery ? `, ${model.gallery} pictures in the gallery` : "";
  byId("about").textContent = `${model.task}${classes}${gallery}, ${(model.parameters / 1e6).toFixed(1)} million parameters, on ${model.device}`;
  byId("invitation").textContent = `Drop ${model.takes} here`;
  byId("files").accept = model.takes === "films" ? "video/*,image/gif" : "image/*";
  byId("limits").textContent = `Up to ${model.limits.bytes / 1e6} MB and ${model.limits.pixels / 1e6} megapixels each. They stay on the machine that this server runs on.`;
}

function take(files) {
  for (const file of files) {
    const said = made("div", {}, made("p", { className: "soft", textContent: "waiting" }));
    const { seen, stage } = preview(file);
    byId("results").prepend(made("article", {}, made("h2", { textContent: file.name || "pasted" }), seen, said));
    waiting.push({ file, said, stage });
  }
  work();
}

function preview(file) {
  const stage = made("div", { className: "stage" });
  const film = file.type.startsWith("video/");
  const shown = made(film ? "video" : "img", { src: URL.createObjectURL(file) });
  if (film) Object.assign(shown, { controls: true, muted: true, loop: true });
  else shown.alt = `what was sent: ${file.name}`;
  shown.addEventListener("error", () => stage.remove()); // a kind that browsers do not show, or no picture
  shown.addEventListener("load", () => {
    if (shown.naturalWidth < WIDTH_OF_SMALL) {
      stage.classList.add("small");
      shown.style.width = `${WIDTH_OF_SMALL}px`;
    }
  });
  stage.append(shown);
  return { seen: made("div", { className: "seen" }, stage), stage };
}

async function work() {
  if (busy) return;
  busy = true;
  for (let one = waiting.shift(); one; one = waiting.shift()) {
    byId("status").textContent = `asking about ${one.file.name || "a picture"}; ${waiting.length} waiting`;
    try {
      show(one, await ask(one.file));
    } catch (error) {
      one.said.replaceChildren(made("p", { className: "wrong", role: "alert", textContent: error.message }));
    }
  }
  byId("status").textContent = "done";
  busy = false;
}

async function ask(file) {
  if (file.size > model.limits.bytes) throw new Error(`larger than ${model.limits.bytes / 1e6} MB`);
  const form = new FormData();
  form.append("file", file, file.name || "pasted");
  for (let tries = 0; tries < TRIES; tries++) {
    const response = await fetch("predict", { method: "POST", body: form });
    const told = await response.json();
    if (response.ok) return told.predictions[0];
    if (response.status !== 503) throw new Error(told.error);
    await new Promise((resolve) => setTimeout(resolve, 1000));
  }
  throw new Error("the server is busy; try again later");
}

function show({ said, stage }, told) {
  const parts = [];
  if (told.top) parts.push(bars(told.top));
  if (told.things) parts.push(things(told.things, stage));
  if (told.nearest) parts.push(neighbours(told.nearest));
  if (told.embedding) parts.push(made("p", { className: "soft", textContent: `an embedding of ${told.embedding.length} numbers` }));
  const raw = made("pre", { tabIndex: 0, textContent: JSON.stringify(told, null, 1) });
  parts.push(made("details", {}, made("summary", { textContent: "as JSON" }), raw));
  said.replaceChildren(...parts);
}

function bars(top) {
  const rows = top.map((one) => {
    const bar = made("i", { ariaHidden: "true" });
    bar.style.width = `${100 * one.probability}%`;
    const share = `${(100 * one.probability).toFixed(1)} %`;
    return made("li", {}, bar, made("span", { textContent: one.class }), made("span", { textContent: share }));
  });
  return made("ol", { className: "bars" }, ...rows);
}

function things(found, stage) {
  const list = made("ol", { className: "bars long", tabIndex: 0, ariaLabel: "things found" });
  const image = stage.querySelector("img");
  const draw = () => {
    const shown = found.filter((one) => one.score >= Number(byId("score").value));
    list.replaceChildren(...shown.map((one) => row(one)));
    if (!shown.length) list.append(made("li", { className: "soft", textContent: "nothing" }));
    if (image) boxes(shown, stage, image);
  };
  byId("least").hidden = false;
  byId("score").addEventListener("input", draw);
  if (image && !image.complete) image.addEventListener("load", draw);
  draw();
  return list;
}

function row(one) {
  const swatch = made("b", { className: "swatch", ariaHidden: "true" });
  swatch.style.background = colour(one.class);
  return made("li", {}, made("span", {}, swatch, one.class), made("span", { textContent: one.score.toFixed(2) }));
}

const colour = (name) => COLOURS[Math.max(0, model.classes.indexOf(name)) % COLOURS.length];

function boxes(shown, stage, image) {
  const draw = (kind, attributes) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", kind);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    return node;
  };
  for (const old of stage.querySelectorAll("svg, .tag")) old.remove();
  if (!image.naturalWidth) return;
  const tags = [];
  const over = draw("svg", { viewBox: `0 0 ${image.naturalWidth} ${image.naturalHeight}`, preserveAspectRatio: "none", role: "img", "aria-label": `${shown.length} boxes` });
  for (const { class: name, score, box: [left, top, right, bottom] } of shown) {
    const box = draw("rect", { x: left, y: top, width: right - left, height: bottom - top, stroke: colour(name) });
    const title = draw("title", {});
    title.textContent = `${name} ${score.toFixed(2)}`;
    box.append(title);
    over.append(box);
    const tag = made("span", { className: "tag", textContent: name, ariaHidden: "true" });
    Object.assign(tag.style, { left: `${(100 * left) / image.naturalWidth}%`, top: `${(100 * top) / image.naturalHeight}%`, background: colour(name) });
    tags.push(tag);
  }
  stage.append(over, ...tags);
}

function neighbours(near) {
  const items = near.map((one) => {
    const source = `gallery/${one.path.split("/").map(encodeURIComponent).join("/")}`;
    const picture = made("img", { src: source, alt: one.path, loading: "lazy" });
    return made("li", {}, picture, made("span", { textContent: `${one.distance.toFixed(3)} ${one.path}` }));
  });
  return made("ol", { className: "near" }, ...items);
}

function listen() {
  const drop = byId("drop");
  byId("files").addEventListener("change", (event) => { take(event.target.files); event.target.value = ""; });
  byId("score").addEventListener("input", () => { byId("said").textContent = Number(byId("score").value).toFixed(2); });
  byId("form").addEventListener("submit", (event) => event.preventDefault());
  for (const name of ["dragenter", "dragover"]) document.addEventListener(name, (event) => { event.preventDefault(); drop.classList.add("over"); });
  for (const name of ["dragleave", "drop"]) document.addEventListener(name, () => drop.classList.remove("over"));
  document.addEventListener("drop", (event) => { event.preventDefault(); take(event.dataTransfer.files); });
  document.addEventListener("paste", (event) => take(event.clipboardData.files));
}

listen();
greet().catch(() => { byId("status").textContent = "the server does not answer"; });
