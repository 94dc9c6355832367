// A page whose scripts do not come would stay empty. In the head, before them: it says why, once. A script that is
// preloaded in vain is asked for again when it is needed; if that fails, too, Vite says so. Vite would also give a part of
// the page up for its style: here that is asked for once more, and the part does not wait for it. Of other hosts there is
// only a Space's own header, whose fonts nobody misses.
{
  let told = false;
  async function tell() {
    if (told) return;
    told = true;
    const asked = fetch("health", { method: "POST" }); // refused with a reason to who is refused everything
    const { detail } = await asked.then((answer) => (answer.status === 405 ? {} : answer.json())).catch(() => ({}));
    const why = detail ?? "The lab did not come whole. Is the server still running? Load this page again.";
    document.body.append(Object.assign(document.createElement("p"), { textContent: why, role: "alert", style: "margin: 20px" }));
  }
  addEventListener("error", ({ target }) => {
    if (!target.matches?.("script[type=module], link[rel=stylesheet]")) return;
    if (new URL(target.src || target.href || "", location).origin !== location.origin) return; // inline: of this page
    if (target.matches("link:not([data-again])")) {
      const again = target.cloneNode();
      again.dataset.again = "";
      target.replaceWith(again);
    } else tell();
  }, true);
  addEventListener("vite:preloadError", (event) => {
    if (event.payload.message.startsWith("Unable to preload CSS")) event.preventDefault();
    else tell();
  });
}
