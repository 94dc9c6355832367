// The film of a run as a file for a slide: an animated WebP, or a video where a browser can encode one.

import { button, download, make } from "./dom.js";
import { Timeline } from "./pace.js";
import { blobOf, drawn, offerPictures, svgOf } from "./pictures.js";
import { RoundFilm } from "./round_film.js";
import { phaseAt, phasesOf, reached } from "./round_phases.js";
import { sentenceOf } from "./round_words.js";

const STEP = 50; // milliseconds: no picture of a film is shown for less
const SEEN = 240; // of a round, from which on its phases are shown
const END = 2000; // for which the last picture stays
const QUALITY = 0.8;
const SCALE = 1.5; // pixels of a film for one of the page
const VIDEOS = ["video/mp4;codecs=avc1", "video/mp4", "video/webm"];
const videoType = () => VIDEOS.find((type) => window.MediaRecorder?.isTypeSupported(type));
const UNABLE = "This browser can encode no film. Save a picture, or use a current Chrome, Edge or Firefox.";

/** Let people save the stage's round as a picture, and the whole run as a film. ``states``: of RoundFilm. */
export function offerFilm(stage, root, states) {
  let making = null; // AbortController
  const kind = videoType()?.startsWith("video/mp4") ? "MP4" : "WebM";
  const more = [
    ["WebP", "the run as a film, at this speed", (file) => save(file, webp)],
    [kind, "the same as a video", (file) => save(file, video)],
  ];
  offerPictures(root.querySelector(".panel-head"), () => root.querySelector("h2").textContent, () => svgOf(root), more);

  async function save(file, encode) {
    if (!stage.picture.frames.some(({ round }) => round)) return stage.sayNow("There is no run to make a film of. Press Run first.", true);
    making?.abort();
    making = new AbortController();
    const { signal } = making;
    const [words, bar] = [make("span"), make("progress", { ariaLabel: "The film" })];
    const note = make("div", "making", words, bar, button({ onclick: () => making.abort() }, "Cancel"));
    root.append(note);
    let began; // a step of it: drawing, or recording
    const progress = (text, share, first = false) => {
      if (first) began = performance.now();
      const left = ((performance.now() - began) * (1 - share)) / share / 1000;
      words.textContent = `${text}${left > 1 ? ` · about ${Math.ceil(left)} s left` : ""}`;
      bar.value = share;
    };
    try {
      const { blob, ending } = await encode(await pictures(stage, root, states, progress, signal), progress, signal);
      download(file(ending).replace(/-(round|step|prefill)[^.]*/, "-film"), blob.type, blob);
    } catch (error) {
      if (!signal.aborted) stage.sayNow(error instanceof Unable ? UNABLE : `The film could not be made: ${error.message}. Try it once more.`, true);
    }
    note.remove();
  }
}

class Unable extends Error {}

/** What a film shows, and for how long: [{seq, place, ms}], as the player would at this speed. */
function instants(frames, pace) {
  const timeline = new Timeline(frames, pace, true);
  const last = frames.length - 1;
  const list = [];
  for (let clock = 0; clock < timeline.end(last); clock += STEP) {
    const { seq, share } = timeline.at(clock, last);
    if (!frames[seq].round) continue;
    const end = phasesOf(frames[seq]).length - 1;
    const place = timeline.end(seq) - timeline.end(seq - 1) < SEEN ? end : phaseAt(frames[seq], share);
    const before = list.at(-1);
    if (before?.seq === seq && before.place === place) before.ms += STEP;
    else list.push({ seq, place, ms: STEP });
  }
  if (list.length) list.at(-1).ms += END;
  return list;
}

/** The pictures of a run's film: [{blob, ms}], and their size. They are drawn from a second strip, out of sight. */
async function pictures(stage, root, states, progress, signal) {
  const run = stage.picture;
  const frames = [...run.frames];
  const copy = root.cloneNode(true);
  Object.assign(copy, { inert: true, ariaHidden: "true" });
  copy.querySelector(".making").remove();
  copy.style.cssText = `position: fixed; left: -9999px; width: ${root.clientWidth}px`;
  root.after(copy);
  try {
    const film = new RoundFilm(copy, states, () => {});
    const canvas = make("canvas");
    const list = instants(frames, stage.speed.value);
    const made = [];
    for (const [i, { seq, place, ms }] of list.entries()) {
      const frame = frames[seq];
      const whole = place === phasesOf(frame).length - 1;
      run.glance(whole ? seq : seq - 1, (picture) => {
        film.draw(picture, whole ? null : { frame, place }, true);
        copy.querySelector(".say").textContent = whole ? picture.say : sentenceOf(frame, reached(frame, place));
      });
      await drawn(svgOf(copy), SCALE, canvas);
      made.push({ ms, blob: await blobOf(canvas, "image/webp", QUALITY) });
      progress(`Drawing ${i + 1} of ${list.length}`, (i + 1) / list.length, !i);
      if (i % 5 === 4) await new Promise((go) => setTimeout(go)); // the page goes on
      signal.throwIfAborted();
    }
    return { made, width: canvas.width, height: canvas.height };
  } finally {
    copy.remove();
  }
}

/** An animated WebP (WebP Container Specification): the pictures' own data, one after another. */
async function webp({ made, width, height }) {
  if (made[0].blob.type !== "image/webp") throw new Unable();
  const little = (value, count) => Array.from({ length: count }, (_, i) => (value >> (8 * i)) & 255);
  const chunk = (name, ...data) => [name, Uint8Array.from(little(data.reduce((sum, part) => sum + part.length, 0), 4)), ...data];
  const size = [...little(width - 1, 3), ...little(height - 1, 3)];
  const parts = [...chunk("VP8X", Uint8Array.from([2, 0, 0, 0, ...size])), ...chunk("ANIM", Uint8Array.from([0, 0, 0, 0, 0, 0]))];
  for (const { blob, ms } of made) {
    const data = new Uint8Array(await blob.arrayBuffer());
    parts.push(...chunk("ANMF", Uint8Array.from([0, 0, 0, 0, 0, 0, ...size, ...little(ms, 3), 2]), ...imageChunks(data)));
  }
  const length = parts.reduce((sum, part) => sum + part.length, 4);
  return { blob: new Blob(["RIFF", Uint8Array.from(little(length, 4)), "WEBP", ...parts], { type: "image/webp" }), ending: "webp" };
}

/** The chunks of a still WebP that hold the image: not its header, nor a colour profile. */
function imageChunks(data) {
  const view = new DataView(data.buffer);
  const found = [];
  for (let at = 12; at < data.length; ) {
    const end = at + 8 + view.getUint32(at + 4, true);
    const next = end + (end % 2);
    if (["ALPH", "VP8 ", "VP8L"].includes(String.fromCharCode(...data.subarray(at, at + 4)))) found.push(data.subarray(at, next));
    at = next;
  }
  return found;
}

/** A video, recorded while the pictures are shown on a canvas: it takes as long as it is. */
async function video({ made, width, height }, progress, signal) {
  const type = videoType();
  if (!type) throw new Unable();
  const canvas = make("canvas", { width, height });
  const surface = canvas.getContext("2d", { alpha: false });
  const recorder = new MediaRecorder(canvas.captureStream(), { mimeType: type, videoBitsPerSecond: 4e6 });
  const data = [];
  recorder.ondataavailable = (event) => data.push(event.data);
  const stopped = new Promise((done, fail) => Object.assign(recorder, { onstop: done, onerror: ({ error }) => fail(error ?? new Unable()) }));
  const show = async ({ blob }) => surface.drawImage(await createImageBitmap(blob), 0, 0);
  await show(made[0]);
  recorder.start();
  const began = performance.now();
  const whole = made.reduce((sum, { ms }) => sum + ms, 0);
  let due = began;
  try {
    for (const [i, picture] of made.entries()) {
      await show(picture);
      due += picture.ms;
      progress(`Recording ${i + 1} of ${made.length}`, (due - began) / whole, !i);
      await new Promise((go) => setTimeout(go, due - performance.now()));
      signal.throwIfAborted();
    }
    await show(made.at(-1)); // or the last is as short as any
    await new Promise((go) => setTimeout(go, 4 * STEP)); // until it is recorded
  } finally {
    recorder.stop();
  }
  await stopped;
  return { blob: new Blob(data, { type: type.split(";")[0] }), ending: type.includes("mp4") ? "mp4" : "webm" };
}
