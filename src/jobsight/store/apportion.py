"""Whole numbers split into whole numbers whose sum is exactly what was split."""

from __future__ import annotations

from collections.abc import Sequence


def apportion(amount: int, weights: Sequence[int]) -> list[int]:
    """Split an amount by weights; what rounding leaves goes to the largest remainders.

    Of equal remainders the first one gets it, so the caller's order decides. No share is above
    the whole number next to its exact value. Weights that are all zero split nothing off: the
    first one takes it all.
    """
    whole = sum(weights)
    if not amount or not whole or len(weights) == 1:
        return [amount, *[0] * (len(weights) - 1)] if weights else []
    shares, remainders = [], []
    for weight in weights:
        share, remainder = divmod(amount * weight, whole)
        shares.append(share)
        remainders.append(remainder)
    left = amount - sum(shares)
    if left:
        order = sorted(range(len(weights)), key=remainders.__getitem__, reverse=True)
        for place in order[:left]:
            shares[place] += 1
    return shares


def spread(amounts: Sequence[int], weights: Sequence[int]) -> list[list[int]]:
    """Split several amounts (of days) by the same weights (of programs), one list per amount.

    Each list adds up to its amount, and each program's shares to what the sum of all amounts
    gives it: neither the days nor the programs gain or lose by rounding.
    """
    left = apportion(sum(amounts), weights)
    if len(amounts) == 1:
        return [left]
    result = []
    for amount in amounts:
        # By what is left: no share can exceed it, and the last amount takes exactly the rest.
        shares = apportion(amount, left)
        left = [whole - share for whole, share in zip(left, shares, strict=True)]
        result.append(shares)
    return result
