"""Puts items into bins as they come: the text that `fanfold run evolve` improves in docs/evolve.md."""

# EVOLVE-BLOCK-START
SPARE = 30  # room that stays free in every bin
OPEN = 2  # bins that are filled at the same time
# EVOLVE-BLOCK-END


def pack(items, size):
    bins = [[]]
    for item in items:
        fitting = [bin for bin in bins[-OPEN:] if sum(bin) + item <= size - SPARE or not bin]
        if not fitting:
            bins.append([])
            fitting = bins[-1:]
        max(fitting, key=sum).append(item)
    return bins
