// A server's channel (visualize/jobs/sse_channel.py), read to its end over connections that may break.

export const SILENT = 15_000; // milliseconds; a channel speaks every five seconds (ALIVE_S)
const PATIENCE = 60_000; // milliseconds; the most that a channel's first word is waited for
export const AGAIN = 3000; // milliseconds until a server that did not answer is asked again
export const UNREACHED = "The lab does not answer. Trying again …";

/** Read a channel to its end. ``gone`` is called at its end, or if there is no such
    channel; ``lost`` when it cannot be reached, and ``found`` when it can again. One that ``rests`` is not read while the
    page is in the background: a browser has six connections to a server, and each page needs one. */
export function openChannel(id, { hear, gone, lost = () => {}, found = () => {}, rests = false }) {
  let stream;
  let last = "";
  let away = false;
  let waiting; // timer for another attempt
  let patience = SILENT; // grows while nothing is heard: over a slow line every answer may begin late, or its first message
  function open() {
    stream?.close();
    stream = new EventSource(`channels/${id}?after=${last}`);
    stream.onopen = answered;
    stream.onmessage = ({ data, lastEventId }) => ((last = lastEventId), alive(), hear(data));
    stream.addEventListener("alive", alive);
    stream.addEventListener("end", () => (close(), gone()));
    stream.onerror = () => {
      lose();
      if (stream.readyState === EventSource.CLOSED) wait(AGAIN, open); // else it reconnects by itself
    };
    wait(patience, giveUp);
  }
  function wait(milliseconds, act) {
    clearTimeout(waiting);
    waiting = setTimeout(act, milliseconds);
  }
  function giveUp() { // a connection may die without a word
    lose();
    patience = Math.min(2 * patience, PATIENCE);
    open();
  }
  function lose() {
    if (!away) lost();
    away = true;
  }
  function alive() {
    patience = SILENT;
    answered();
  }
  function answered() { // over a slow line the first message may come long after that
    wait(patience, giveUp);
    if (away) found();
    away = false;
  }
  function rest() {
    clearTimeout(waiting);
    stream?.close();
  }
  function look() {
    rest();
    if (!document.hidden) open();
  }
  function close() {
    rest();
    document.removeEventListener("visibilitychange", look);
  }
  if (rests) document.addEventListener("visibilitychange", look);
  if (!rests || !document.hidden) open();
  return { close };
}

const FORGOTTEN = "The server no longer has this: it may have been restarted. Begin again.";

/** Read a component's values, now and whenever they change: records as JSON, null where there is none. One that names a
    ``channel`` is the beginning of a job: the records in that channel are read in its place, each with what else the
    first has, until another value comes. */
export function readRecords({ props, watch }, read) {
  let stream;
  function changed() {
    if (!props.value) return read(null);
    stream?.close();
    const first = JSON.parse(props.value);
    if (!first?.channel) return read(first);
    const { channel, ...begun } = first;
    let running = true;
    stream = openChannel(channel, {
      hear(line) {
        const record = { ...begun, ...JSON.parse(line) };
        running = (record.growth ?? record).running ?? running;
        read(record);
      },
      gone: () => running && read({ ...begun, running: false, problem: FORGOTTEN, progress: FORGOTTEN }),
    });
  }
  watch("value", changed);
  changed();
}
