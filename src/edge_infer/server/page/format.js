// Figures as a person reads them.

const MIB = 1024 * 1024;

/** 1234567 -> "1,234,567" */
export function count(number) {
  return number.toLocaleString("en");
}

/** Bytes in MiB or GiB, with the digits that matter. */
export function bytes(number) {
  const inMib = number / MIB;
  return inMib < 1024 ? `${digits(inMib)} MiB` : `${digits(inMib / 1024)} GiB`;
}

/** Milliseconds as "29 ms" or "1.4 s". */
export function seconds(ms) {
  return ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`;
}

/** Tokens per second. */
export function rate(perSecond) {
  return digits(perSecond);
}

function digits(number) {
  return number < 10 ? number.toFixed(1) : count(Math.round(number));
}
