"""The statistics that studies report: intervals, paired tests, corrections, rankings and power, on plain numbers."""

from fanfold.stats.comparisons import Paired, holm, mcnemar, paired, sign_flip, spearman
from fanfold.stats.distributions import binomial_tail, normal_quantile, t_cdf, t_quantile
from fanfold.stats.intervals import Bounds, Interval, bootstrap, bounds, clustered_mean, clustered_rate, mean, rate
from fanfold.stats.power import PowerRow, detectable_difference, power_of_rate_difference, power_table
from fanfold.stats.ranking import Ranked, bradley_terry, ranking

__all__ = [
    "Bounds",
    "Interval",
    "Paired",
    "PowerRow",
    "Ranked",
    "binomial_tail",
    "bootstrap",
    "bounds",
    "bradley_terry",
    "clustered_mean",
    "clustered_rate",
    "detectable_difference",
    "holm",
    "mcnemar",
    "mean",
    "normal_quantile",
    "paired",
    "power_of_rate_difference",
    "power_table",
    "ranking",
    "rate",
    "sign_flip",
    "spearman",
    "t_cdf",
    "t_quantile",
]
