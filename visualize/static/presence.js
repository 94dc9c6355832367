// The server knows by an open connection that a tab is there, but a browser opens six to a server at most, over all its
// tabs: Gradio, which keeps one open in each, would never load a sixth. So a tab that is hidden, with nothing under way,
// says that it stays, and closes its connection until it is shown again (visualize/jobs/tab_heartbeat.py). In the head,
// before Gradio's own scripts, whose request for the connection is answered here.
{
  const REST = 1000; // milliseconds for which a tab is hidden before it says so
  const AGAIN = 3000; // milliseconds
  const { fetch } = window;
  window.fetch = (request, options) => {
    const address = new URL(request.url ?? request, location);
    if (!/\/heartbeat\/\w+$/.test(address.pathname)) return fetch(request, options);
    document.body.dataset.session = address.pathname.split("/").at(-1);
    attend(address);
    return new Promise(() => {}); // Gradio only waits for its end
  };

  function attend(address) {
    let connection = null;
    let waiting;
    function connect() {
      const opened = (connection = new EventSource(address));
      // A browser opens one that breaks again, but not one that a proxy refuses.
      opened.onerror = () => opened.readyState === EventSource.CLOSED && setTimeout(() => opened === connection && connect(), AGAIN);
    }
    const to = (what) => Object.assign(new URL(address), { pathname: `${address.pathname}/${what}` });
    const rests = () => document.hidden && !document.body.matches(".running");

    async function look() {
      const open = connection;
      if (!rests()) open || connect();
      else if (open && (await fetch(to("away"), { method: "POST", body: "{}" }).catch(() => null))?.ok) {
        open.close();
        if (open === connection) connection = null; // else closed after another answer, and perhaps opened anew
        if (!rests()) look(); // shown again in the meantime
      }
    }
    function lookSoon() {
      clearTimeout(waiting);
      if (rests()) waiting = setTimeout(look, REST);
      else look();
    }
    document.addEventListener("visibilitychange", lookSoon);
    new MutationObserver(lookSoon).observe(document.body, { attributeFilter: ["class"] });
    // The browser's Back may bring the page as it was, when the server has forgotten it: its address brings it anew.
    window.addEventListener("pageshow", ({ persisted }) => persisted && location.reload());
    // Not only where there is no connection: the server may have been told just now that this one is away.
    window.addEventListener("pagehide", () => navigator.sendBeacon(to("gone"), "{}"));
    connect(); // also if it is hidden already: only who is there can say that they are away
    lookSoon();
  }
}
