"""Algorithm 1 of the paper, transcribed line by line: slow, with nothing shared, kept or updated. The oracle of `ltf_nb.lucbfair`."""
import numpy as np


def plain_lucbfair(task, feature_map, rng, K, loci, draw, ridge, beta, alpha, nu, target=None, nu_max=1.0, eta=0.0, points=None):
    """Run K episodes; `loci` is a list of actions, `draw(i, rng)` draws from the cell of locus i. Returns a dict of lists.

    V averages Q over the actions `points[i]` of each cell; they are the locus alone if left out.
    """
    H, M, d = task.horizon, len(loci), feature_map.dim
    points = [[locus] for locus in loci] if points is None else points
    task_rng, agent_rng = rng.spawn(2)
    past = []  # one list of (s, a, signal, s_next) for each episode
    log = {"s": [], "a": [], "signal": [], "nu": [], "value": []}

    def phi(s, a):
        return feature_map(s, a)

    def fit():
        """Lines "for step h = H, ..., 1": weights and Gram matrices of all steps."""
        w, Lam = [None] * H, [None] * H
        for h in reversed(range(H)):
            Lam[h] = ridge * np.eye(d)
            total = np.zeros((2, d))
            for episode in past:
                s, a, signal, s_next = episode[h]
                feature = phi(s, a)
                Lam[h] = Lam[h] + np.outer(feature, feature)
                V = values(s_next, h + 1, w, Lam)[2]
                for j in range(2):
                    total[j] = total[j] + feature * (signal[j] + V[j])
            w[h] = np.array([np.linalg.solve(Lam[h], total[j]) for j in range(2)])
        return w, Lam

    def values(s, h, w, Lam):
        """Q at the loci, softmax and V in state s at step h; V is 0 after the last step."""
        if h == H:
            return None, None, np.zeros(2)

        def Q_at(a):
            feature = phi(s, a)
            xi = np.sqrt(feature @ np.linalg.solve(Lam[h], feature))
            return [min(w[h][j] @ feature + beta * xi, H) for j in range(2)]

        Q = np.array([Q_at(locus) for locus in loci])
        score = np.array([alpha * (Q[i, 0] + nu * Q[i, 1]) for i in range(M)])
        SM = np.exp(score - max(score)) / sum(np.exp(score - max(score)))
        mean_Q = [sum(np.array(Q_at(a)) for a in points[i]) / len(points[i]) for i in range(M)]
        V = np.array([sum(SM[i] * mean_Q[i][j] for i in range(M)) for j in range(2)])
        return Q, SM, V

    for _ in range(K):
        s = s_1 = task.start(task_rng)
        w, Lam = fit()
        V_1 = values(s_1, 0, w, Lam)[2]
        episode = []
        for h in range(H):
            _, SM, _ = values(s, h, w, Lam)
            u, i, reached = agent_rng.random(), 0, SM[0]
            while reached < u and i < M - 1:
                i += 1
                reached = reached + SM[i]
            a = draw(i, agent_rng)
            s_next, r, g = task.step(s, a, task_rng)
            episode.append((s, a, (r, g), s_next))
            s = s_next
        past.append(episode)
        log["s"].append([row[0] for row in episode] + [s])
        log["a"].append([row[1] for row in episode])
        log["signal"].append([row[2] for row in episode])
        log["nu"].append(nu)
        log["value"].append(V_1)
        if target is not None:
            nu = max(min(nu + eta * (target - V_1[1]), nu_max), 0.0)
    w, Lam = fit()
    return log | {"w": w, "Lam": Lam}
