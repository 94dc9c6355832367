// The server ends the stream from which Gradio reads the answers to a page's events after the last that it knows of. For
// the next event Gradio asks for a new one; but if the news of the end is still under way, it takes the old stream for
// open, and would wait for ever (6.31). Here such an end is not passed on: the next stream follows in its place. In the
// head, before Gradio's own scripts.
{
  const { fetch } = window;
  const [awaited, early] = [new Set(), new Set()]; // events, by id: not answered yet; answered before Gradio hears that they were taken
  window.fetch = (request, options) => {
    const { pathname } = new URL(request.url ?? request, location);
    const ask = () => fetch(request, options);
    if (/\/queue\/join$/.test(pathname)) return asked(ask());
    return /\/queue\/data$/.test(pathname) ? followed(ask) : ask();
  };

  /** Note an event that is taken. Of one that is refused, Gradio's events say nothing: tell the page (header.js). */
  async function asked(answer) {
    const refused = () => document.dispatchEvent(new Event("decode-lab-refused"));
    const response = await answer.catch((error) => {
      refused();
      throw error;
    });
    if (!response.ok) refused();
    else {
      const { event_id } = await response.clone().json();
      early.delete(event_id) || awaited.add(event_id);
    }
    return response;
  }

  /** A stream, and each next one if an event is still awaited at its end, as one response. */
  async function followed(ask) {
    const first = await ask();
    const body = new ReadableStream({
      async start(reader) {
        try {
          for (let stream = first; stream.ok && (await passOn(stream, reader)); ) stream = await ask();
          reader.close();
        } catch (error) {
          reader.error(error); // also where Gradio gave it up, at its end
        } finally {
          awaited.clear(); // lost with the server, or read from the next stream, which Gradio asks for
        }
      },
    });
    return new Response(first.ok ? body : first.body, first);
  }

  /** Pass a stream's messages on. Returns whether its end was withheld, because an event is still awaited. */
  async function passOn(stream, reader) {
    const encoder = new TextEncoder();
    const parts = stream.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    for (let part = await parts.read(); !part.done; part = await parts.read()) {
      const messages = (text + part.value).split("\n\n");
      text = messages.pop();
      for (const message of messages) {
        const { msg, event_id } = JSON.parse(message.replace(/^data: /, ""));
        if (msg === "process_completed") awaited.delete(event_id) || early.add(event_id);
        if (msg === "close_stream" && awaited.size) return true;
        reader.enqueue(encoder.encode(`${message}\n\n`));
      }
    }
    return false;
  }
}
