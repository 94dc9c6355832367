// A page whose scripts do not come would stay empty. In the head, before them: it says why.
addEventListener("error", async ({ target }) => {
  if (!target.matches?.("script[type=module]")) return;
  const asked = fetch("health", { method: "POST" }); // refused with a reason to who is refused everything
  const { detail } = await asked.then((answer) => (answer.status === 405 ? {} : answer.json())).catch(() => ({}));
  const why = detail ?? "The lab's scripts did not come. Is the server still running? Load this page again.";
  document.body.append(Object.assign(document.createElement("p"), { textContent: why, role: "alert", style: "margin: 20px" }));
}, true);
