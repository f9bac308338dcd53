"""Which examples of a page a change can reach: the others give what they gave before."""

from reference_impl.doctesting.case import Case
from reference_impl.doctesting.console import commands
from reference_impl.doctesting.fences import PROSE


def affected(before: list[Case], after: list[Case]) -> tuple[int, int] | None:
    """Return the first example of the changed page to run and the one at which to stop, or None when none can differ.

    A change to what is compared, an output or a bound value, reaches no further than itself; a change to what is done
    reaches everything below it.
    """
    looks, now = [_look(case) for case in before], [_look(case) for case in after]
    if looks == now:
        return None
    first = _common(looks, now)
    if [_effect(case) for case in before if _effect(case)] != [_effect(case) for case in after if _effect(case)]:
        return min(first, len(after) - 1), len(after)
    stop = len(after) - _common(looks[::-1], now[::-1])
    # Where an example is gone, what stood above it is looked at once more: its output may have gone with it.
    return min(first, len(after) - 1), max(stop, first + 1)


def _common(left: list[tuple[object, ...]], right: list[tuple[object, ...]]) -> int:
    """Return with how many equal examples both begin."""
    return next((n for n, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))


def _look(case: Case) -> tuple[object, ...]:
    """Return all of an example that its evaluator may read, but for where it stands."""
    fence = case.fence
    # Only code looks at the text below it, and only a text at what stands above.
    below = case.after.source if case.after and case.after.kind == "text" else None
    above = case.before.kind if case.before and fence.kind == "text" else None
    # Prose is held to its rules before anything is run.
    source = "" if fence.kind == PROSE else fence.source
    return fence.kind, source, fence.argument, tuple(fence.options.items()), below, above, str(case.front_matter)


def _effect(case: Case) -> str:
    """Return what an example does, as opposed to what it compares; empty for one that only compares."""
    source = case.fence.source
    match case.fence.kind:
        case "console":
            return "\n".join(command.typed for command in commands(source))
        case "pycon":
            return "\n".join(line for line in source.split("\n") if line.startswith((">>>", "...")))
        case "python" | "yaml" | "json" | "toml":
            # A caption is the name of a file that the fence is written to.
            return f"{case.fence.options}{source}"
    return ""
