"use strict";
// Numbers as people read them: common/base/units.h has the same texts in C, tests/golden/units.tsv the examples.
const units = (() => {
  const known = (value) => typeof value === "number" && !Number.isNaN(value);
  const rounded = (value, digits) => Number(value.toExponential(digits - 1));
  const whole = (value) => Math.floor(value + 0.5);

  // From 0 below 1000, without zeros at its end.
  function digits(value, count) {
    value = rounded(value, count);
    if (!value) return "0";
    const text = value.toFixed(Math.max(0, count - 1 - Math.floor(Math.log10(value))));
    return text.includes(".") ? text.replace(/\.?0+$/, "") : text;
  }

  function two(number, base, large, small) {
    const rest = number % base;
    return `${(number - rest) / base} ${large}` + (rest ? ` ${rest} ${small}` : "");
  }

  function duration(seconds) {
    if (!known(seconds)) return "-";
    if (seconds === Infinity) return "\u221e";
    if (seconds <= 0) return "0 s";
    if (rounded(seconds * 1e3, 3) < 1000) return `${digits(seconds * 1e3, 3)} ms`;
    if (rounded(seconds, 3) < 60) return `${digits(seconds, 3)} s`;
    if (whole(seconds) < 3600) return two(whole(seconds), 60, "min", "s");
    if (whole(seconds / 60) < 48 * 60) return two(whole(seconds / 60), 60, "h", "min");
    return two(whole(seconds / 3600), 24, "d", "h");
  }

  function scaled(value, names) {
    if (!known(value)) return "-";
    value = Math.max(value, 0);
    let i = 0;
    for (; rounded(value, 3) >= 1000 && i < names.length - 1; i++) value /= 1000;
    return `${rounded(value, 3) < 1000 ? digits(value, 3) : whole(value)} ${names[i]}`.trim();
  }

  function percent(part) {
    if (!known(part)) return "-";
    if (rounded(100 * part, 2) < 1) return `${digits(100 * Math.max(part, 0), 2)} %`;
    if (part < 1 && whole(100 * part) === 100) return `${digits(Math.min(100 * part, 99.9), 3)} %`;
    return `${whole(100 * part)} %`;
  }

  // Nats per token. A diverged run has losses with 40 digits.
  function loss(value) {
    if (!known(value)) return "-";
    return Math.abs(value) < 1e4 ? value.toFixed(4) : value.toExponential(1);
  }

  return {
    known, duration, percent, loss,
    seconds: (value) => duration(known(value) ? whole(value) : value),
    bytes: (value) => scaled(value, ["B", "kB", "MB", "GB", "TB", "PB"]),
    count: (value) => scaled(value, ["", "k", "M", "G", "T"]),
  };
})();
