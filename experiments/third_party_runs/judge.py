"""Figures of merit of predictions: errors, rank correlation, regret, out of memory. Used by third_party.py."""
import collections
import math
import statistics


def quantile(values, share):
    ordered = sorted(values)
    at = share * (len(ordered) - 1)
    low = math.floor(at)
    return ordered[low] + (at - low) * (ordered[min(low + 1, len(ordered) - 1)] - ordered[low])


def errors(pairs):
    """Of (predicted, measured): mean, median, P95 and bias of predicted / measured - 1, and the lowest."""
    signed = [predicted / measured - 1.0 for predicted, measured in pairs]
    absolute = [abs(error) for error in signed]
    return {"runs": len(signed), "mean": statistics.fmean(absolute), "median": statistics.median(absolute),
            "p95": quantile(absolute, 0.95), "bias": statistics.fmean(signed), "lowest": min(signed)}


def kendall(pairs):
    """tau-b of predicted against measured."""
    concordant = discordant = tied_x = tied_y = 0
    for i, (x, y) in enumerate(pairs):
        for u, v in pairs[:i]:
            product = (x - u) * (y - v)
            concordant += product > 0
            discordant += product < 0
            tied_x += x == u and y != v
            tied_y += y == v and x != u
    scale = math.sqrt((concordant + discordant + tied_x) * (concordant + discordant + tied_y))
    return (concordant - discordant) / scale if scale else 0.0


def ranking(groups):
    """Means over groups of at least five runs: tau, and by how much the run that is predicted fastest is slower than
    the fastest one."""
    taus, regrets = [], []
    for pairs in groups.values():
        if len(pairs) < 5:
            continue
        taus.append(kendall(pairs))
        picked = min(pairs, key=lambda pair: pair[0])[1]
        regrets.append(picked / min(measured for _, measured in pairs) - 1.0)
    if not taus:
        return None
    return {"groups": len(taus), "tau": statistics.fmean(taus), "regret": statistics.fmean(regrets),
            "worst_regret": max(regrets)}


def groups_of(runs, member):
    """(model, nodes, batch) -> (predicted, measured): plans of one job that a user chooses among."""
    groups = collections.defaultdict(list)
    for run in runs:
        groups[run.group].append((getattr(run, member), run.measured))
    return groups
