// Gradio (6.31) reads the answers to a page's events from one stream, which the server ends after the last that it knows
// of, and asks for another with the next event. Where the news of the end is under way meanwhile, or lost, or the stream
// breaks in another way than Gradio expects, it takes a stream for open that is not, and the page waits for ever. So here
// an end that comes late is not passed on: the next stream follows in its place. And a stream that breaks, however, is
// told to have ended if nothing is awaited, else to have broken: Gradio then loads the page again, once the server
// answers. And if an answer was read before Gradio heard that its event was taken, it asks for a stream that has nothing
// left to say, of a session that the server has forgotten: there that stream ends at once. In the head, before Gradio's
// own scripts.
{
  const TICK = 5000; // milliseconds. Ticks are counted, not time: a computer that sleeps has not waited.
  const SILENT = 8; // ticks without a word from a stream; the server says something every fifteen seconds
  const TAKEN = 120_000; // milliseconds in which an event is taken, with all that a slow line has to send
  const CLOSE = '{"msg":"close_stream"}';
  const SAID = { headers: { "Content-Type": "text/event-stream" } };
  const encoder = new TextEncoder();
  const { fetch } = window;
  const [awaited, early] = [new Set(), new Set()]; // events, by id: not answered yet; answered before Gradio hears that they were taken
  let left = false; // by whoever looks at it, which breaks connections too
  addEventListener("beforeunload", () => (left = true));
  window.fetch = async (request, options) => {
    const { pathname } = new URL(request.url ?? request, location);
    const posted = () => fetch(request, { signal: AbortSignal.timeout(TAKEN), ...options }).catch(failed);
    if (/\/queue\/join$/.test(pathname)) return asked(posted());
    if (/\/run\/predict$/.test(pathname)) return posted();
    if (!/\/queue\/data$/.test(pathname)) return fetch(request, options);
    return awaited.size ? followed(() => fetch(request, options)) : new Response(new ReadableStream({ start: end }), SAID);
  };

  /** Note that Gradio will load the page again (header.js). */
  function lost() {
    try {
      if (!left) sessionStorage.setItem("decode-lab-lost", "yes");
    } catch {} // the browser stores nothing
  }

  function failed(error) {
    lost();
    throw error;
  }

  /** Note an event that is taken. Of one that is refused, Gradio's events say nothing: tell the page (header.js). */
  async function asked(answer) {
    const refused = () => document.dispatchEvent(new Event("decode-lab-refused"));
    const response = await answer.catch((error) => {
      refused();
      throw error;
    });
    const { event_id } = response.ok ? await response.clone().json().catch(() => ({})) : {};
    if (!event_id) refused();
    else early.delete(event_id) || awaited.add(event_id);
    return response;
  }

  /** A stream, and each next one if an event is still awaited at its end, as one response. */
  async function followed(ask) {
    const first = await ask().catch(failed);
    if (!first.ok) {
      lost();
      return first;
    }
    const body = new ReadableStream({
      async start(reader) {
        try {
          for (let stream = first; ; stream = await ask()) {
            if (!stream.ok) throw new Error(`The next stream was refused: ${stream.status}.`);
            await passOn(stream, reader);
            if (!awaited.size) break;
          }
          end(reader);
        } catch (error) {
          if (awaited.size) failed(error);
          end(reader);
        } finally {
          awaited.clear(); // lost with the server, or read from the next stream, which Gradio asks for
        }
      },
    });
    return new Response(body, first);
  }

  const tell = (reader, message) => reader.enqueue(encoder.encode(`data: ${message}\n\n`));

  function end(reader) {
    tell(reader, CLOSE);
    reader.close();
  }

  /** Pass a stream's messages on, up to its end. Throws if it breaks before. */
  async function passOn(stream, reader) {
    const parts = stream.body.pipeThrough(new TextDecoderStream()).getReader();
    const next = () => {
      let ticks = 0;
      const quiet = setInterval(() => ++ticks === SILENT && parts.cancel(), TICK); // a connection may die without a word
      return parts.read().finally(() => clearInterval(quiet));
    };
    let text = "";
    for (let part = await next(); !part.done; part = await next()) {
      const messages = (text + part.value).split("\n\n");
      text = messages.pop();
      for (const line of messages) {
        if (!line.startsWith("data: ")) continue; // a proxy's comment, to keep the connection open
        const message = line.slice("data: ".length);
        const { msg, event_id } = JSON.parse(message);
        if (msg === "close_stream") return;
        if (msg === "unexpected_error") awaited.clear(); // told of all events
        if (msg === "process_completed") awaited.delete(event_id) || early.add(event_id);
        tell(reader, message);
      }
    }
    throw new Error("The stream broke off.");
  }
}
