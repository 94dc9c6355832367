// A page with no server behind it: parts of the Lab's pages, each a function of (element, props, trigger, server,
// watch) as Gradio would call it, mounted on existing elements.

const parts = {};

document.body.classList.toggle("dark", matchMedia("(prefers-color-scheme: dark)").matches);

/** Mount a part. ``trigger(event, detail)`` is called with what a person requests. Returns a function that sets the
    part's value, as the server would. */
function mount(name, element, trigger = () => {}) {
  const props = { value: "" };
  let changed = () => {};
  parts[name](element, props, trigger, null, (_, listen) => (changed = listen));
  return (value) => {
    props.value = value;
    changed();
  };
}
