// Shows a page that changes again every few seconds. Without scripts the browser reloads it, see frame.html.
"use strict";

const main = document.getElementById("main");
const news = document.getElementById("news");

// Return true if the user has selected text, or has the keyboard's focus, in the part that would be replaced.
function inUse() {
  const selection = getSelection();
  return main.contains(document.activeElement) || (!selection.isCollapsed && main.contains(selection.anchorNode));
}

async function refresh() {
  if (document.hidden || inUse()) return;
  try {
    const answer = await fetch(location.href);
    if (answer.status === 401) return location.reload();  // The console has a new password.
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("main");
    if (inUse()) return;
    main.replaceChildren(...fresh.childNodes);
    // A screen reader announces how a job ended, but not each step of its count.
    const text = main.querySelector("[data-announce]")?.textContent ?? "";
    if (news.textContent !== text) news.textContent = text;
    if (answer.ok && !fresh.dataset.refresh) clearInterval(timer);
  } catch {
    main.querySelector(".live")?.classList.add("off");
  }
}

const timer = main.dataset.refresh && setInterval(refresh, 1_000 * main.dataset.refresh);
