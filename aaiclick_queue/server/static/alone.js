// Pages outside the frame: count down to the next look.
const countdown = document.querySelector("[data-reload]");
if (countdown) {
  let left = Number(countdown.dataset.reload);
  setInterval(() => {
    left -= 1;
    if (left >= 0) countdown.textContent = `${left} s`;
    if (left === 0) location.reload();
  }, 1000);
}
