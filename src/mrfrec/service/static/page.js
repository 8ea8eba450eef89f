// Search while you type, and controls that apply at once. The pages work without this script.
"use strict";

function suggest(input) {
  const form = input.form;
  const list = form.querySelector("[role=listbox]");
  const status = form.querySelector("[role=status]");
  let chosen = -1;
  let timer = 0;
  let request = null;
  let shown = "";

  input.setAttribute("role", "combobox");
  input.setAttribute("aria-autocomplete", "list");
  input.setAttribute("aria-controls", list.id);

  const options = () => [...list.children];

  function show(open) {
    list.hidden = !open;
    input.setAttribute("aria-expanded", String(open));
    if (!open) choose(-1);
  }

  function choose(index) {
    chosen = index;
    options().forEach((option, i) => option.setAttribute("aria-selected", String(i === index)));
    if (index < 0) {
      input.removeAttribute("aria-activedescendant");
    } else {
      const option = options()[index];
      input.setAttribute("aria-activedescendant", option.id);
      option.scrollIntoView({ block: "nearest" });
    }
  }

  async function look() {
    request?.abort();
    if (!input.value.trim()) {
      list.replaceChildren();
      status.textContent = "";
      return show(false);
    }
    request = new AbortController();
    try {
      const query = new URLSearchParams(new FormData(form));
      const answer = await fetch(`${input.dataset.suggest}?${query}`, { signal: request.signal });
      // Enter still works, and says what is wrong.
      if (!answer.ok) return show(false);
      const html = await answer.text();
      // The chosen option stays chosen.
      if (html === shown && !list.hidden) return;
      list.innerHTML = shown = html;
      const found = list.children.length;
      status.textContent = found === 1 ? "1 item" : `${found || "No"} items`;
      choose(-1);
      show(found > 0 && document.activeElement === input);
    } catch (error) {
      if (error.name !== "AbortError") show(false);
    }
  }

  input.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(look, 120);
  });

  input.addEventListener("keydown", (event) => {
    const last = list.children.length - 1;
    if (event.key === "Escape" && !list.hidden) {
      event.preventDefault();
      show(false);
    } else if ((event.key === "ArrowDown" || event.key === "ArrowUp") && last >= 0) {
      event.preventDefault();
      const down = event.key === "ArrowDown";
      if (list.hidden) show(true);
      choose(down ? (chosen < last ? chosen + 1 : 0) : chosen > 0 ? chosen - 1 : last);
    } else if (event.key === "Enter" && chosen >= 0) {
      event.preventDefault();
      location.assign(options()[chosen].dataset.href);
    }
  });

  // The box keeps the focus.
  list.addEventListener("mousedown", (event) => event.preventDefault());
  list.addEventListener("click", (event) => {
    const option = event.target.closest("[role=option]");
    if (option) location.assign(option.dataset.href);
  });
  input.addEventListener("focus", () => show(list.children.length > 0 && input.value.trim() !== ""));
  input.addEventListener("blur", () => show(false));
  show(false);
}

document.querySelectorAll("[data-suggest]").forEach(suggest);

document.querySelectorAll("[data-submit]").forEach((control) => {
  control.form.querySelectorAll("button").forEach((button) => (button.hidden = true));
  const output = control.form.querySelector(`output[for="${control.id}"]`);
  if (output) control.addEventListener("input", () => (output.value = Number(control.value).toFixed(2)));
  control.addEventListener("change", () => control.form.requestSubmit());
});
