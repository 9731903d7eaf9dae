// The Gaussian population under constant thresholds: the numbers behind the interactive portrait.
// Same definitions as ltf_nb.dynamics, populations, metrics and env; tests/test_site.py compares the two.
(function (root) {
  "use strict";

  const LOSSES = { tp: [1, 0], tp_tn: [1, 0.8], zero_one: [1, 1] };
  const U_DEFAULT = [[0.1, 5.5], [0.5, 1]];

  // Standard normal distribution function: Taylor series of erf near 0, continued fraction of erfc in the tail.
  function ndtr(x) {
    const z = Math.abs(x) / Math.SQRT2;
    if (z < 2.5) {
      let term = z, sum = z;
      for (let n = 1; n < 120; n++) { term *= (2 * z * z) / (2 * n + 1); sum += term; }
      const erf = (2 / Math.sqrt(Math.PI)) * Math.exp(-z * z) * sum;
      return x < 0 ? 0.5 * (1 - erf) : 0.5 * (1 + erf);
    }
    let fraction = 0;
    for (let n = 80; n > 0; n--) fraction = n / 2 / (z + fraction);
    const tail = Math.exp(-z * z) / Math.sqrt(Math.PI) / (z + fraction) / 2;
    return x < 0 ? tail : 1 - tail;
  }

  // Acceptance rates Phi(y - x) for y = -1, +1 of each group, with x = -3 + 6 a.
  const accept = (a) => a.map((unit) => [-1, 1].map((y) => ndtr(y - (-3 + 6 * unit))));

  // Mean payoff of each label of one group.
  const fitness = (rates, U) => rates.map((p, y) => U[y][0] + (U[y][1] - U[y][0]) * p);

  const logOddsShift = (rates, U) => rates.map((r) => { const W = fitness(r, U); return Math.log(W[1] / W[0]); });

  // One generation of imitation, kept off the absorbing borders.
  function step(q, rates, U, qMin = 1e-5) {
    return q.map((p, g) => {
      const W = fitness(rates[g], U);
      return Math.min(Math.max((p * W[1]) / (p * W[1] + (1 - p) * W[0]), qMin), 1 - qMin);
    });
  }

  function loss(q, rates, name) {
    const [alpha, beta] = LOSSES[name];
    let value = 1;
    q.forEach((p, g) => { value -= (alpha * p * rates[g][1] + beta * (1 - p) * (1 - rates[g][0])) / q.length; });
    return value;
  }

  const STATISTICS = {
    dp: (p, r) => [p * r[1] + (1 - p) * r[0]],
    eop: (p, r) => [r[1]],
    eo: (p, r) => r,
    qr: (p) => [p],
  };

  // Half the squared difference of a statistic between the two groups.
  function disparity(q, rates, name) {
    const [first, second] = q.map((p, g) => STATISTICS[name](p, rates[g]));
    return first.reduce((sum, x, k) => sum + (x - second[k]) ** 2, 0) / 2;
  }

  // One episode: states (horizon + 1), losses and disparities (horizon).
  function rollout(q0, a, U, lossName, disparityName, horizon = 100, qMin = 1e-5) {
    const rates = accept(a), path = { q: [], loss: [], disparity: [] };
    let q = q0.map((p) => Math.min(Math.max(p, qMin), 1 - qMin));
    for (let h = 0; h < horizon; h++) {
      path.q.push(q);
      path.loss.push(loss(q, rates, lossName));
      path.disparity.push(disparity(q, rates, disparityName));
      q = step(q, rates, U, qMin);
    }
    path.q.push(q);
    return path;
  }

  // The threshold that moves nobody, by bisection; null where every threshold moves everyone the same way.
  function neutralThreshold(U) {
    const shift = (a) => logOddsShift(accept([a]), U)[0];
    let low = 0, high = 1;
    if (shift(low) * shift(high) > 0) return null;
    const sign = Math.sign(shift(high)) || 1;
    for (let i = 0; i < 60; i++) {
      const middle = (low + high) / 2;
      if (sign * shift(middle) < 0) low = middle; else high = middle;
    }
    return (low + high) / 2;
  }

  // Which of the paper's orderings of the payoffs fail.
  function brokenOrderings(U) {
    const [[u00, u01], [u10, u11]] = U;
    return [
      [u01 > u00, "the unqualified should prefer acceptance"],
      [u11 > u10, "the qualified should prefer acceptance"],
      [u01 > u11, "among the accepted the unqualified should gain more"],
      [u10 > u00, "among the rejected the qualified should gain more, or one label dominates"],
    ].filter(([holds]) => !holds).map(([, sentence]) => sentence);
  }

  const Portrait = { LOSSES, U_DEFAULT, ndtr, accept, fitness, logOddsShift, step, loss, disparity, rollout, neutralThreshold, brokenOrderings };
  if (typeof module !== "undefined" && module.exports) module.exports = Portrait;
  else root.Portrait = Portrait;
})(typeof window === "undefined" ? globalThis : window);
