// Keeps the live parts of a page as they are on the server. Without this the pages say the same, once they are reloaded.
"use strict";

for (const part of document.querySelectorAll("[data-live]")) {
  const url = part.dataset.live;
  const button = document.querySelector(`[data-pause="${CSS.escape(url)}"]`);
  const sign = button && button.closest(".live");
  let source = null, paused = false, over = false, latest = null;

  const say = (words, off) => {
    if (!sign) return;
    sign.hidden = false;
    sign.classList.toggle("off", off);
    const said = sign.querySelector(".said");
    if (said.textContent !== words) said.textContent = words;
  };

  // What somebody reads with the keyboard, or has marked, is not taken from under them.
  const inUse = () => {
    const selection = getSelection();
    return part.contains(document.activeElement) ||
      (selection && !selection.isCollapsed && part.contains(selection.anchorNode));
  };

  // What a screen reader is to say: where a job stands, and not each number of it.
  const told = document.querySelector(`[data-tells="${CSS.escape(url)}"]`);
  const tell = () => {
    const news = part.querySelector("[data-told]");
    if (told && news && told.textContent !== news.textContent) told.textContent = news.textContent;
  };

  const show = () => {
    if (latest === null || inUse()) return;
    part.innerHTML = latest;
    latest = null;
    tell();
  };

  const open = () => {
    if (source || paused || over || document.hidden) return;
    source = new EventSource(url);
    source.onopen = () => say("live", false);
    source.onmessage = (message) => { latest = JSON.parse(message.data); show(); };
    source.onerror = () => say("no connection", true);
    // Nothing more will come: a job is over, or the session is, and a reload says which.
    source.addEventListener("end", () => { over = true; close(); say("ended", true); });
  };

  const close = () => { if (source) source.close(); source = null; };

  part.addEventListener("focusout", () => setTimeout(show));
  document.addEventListener("selectionchange", show);
  document.addEventListener("visibilitychange", () => document.hidden ? close() : open());
  addEventListener("pagehide", close);
  addEventListener("pageshow", open);
  if (button) button.addEventListener("click", () => {
    paused = !paused;
    button.setAttribute("aria-pressed", String(paused));
    button.textContent = paused ? "Go on" : "Pause";
    paused ? (close(), say("paused", true)) : open();
  });
  open();
}
