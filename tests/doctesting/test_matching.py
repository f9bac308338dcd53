"""Output is compared to the letter; a number may be bounded and a path left open, and nothing else."""

import pytest

from reference_impl.doctesting.matching import difference


@pytest.mark.parametrize(
    ("printed", "written"),
    [
        ("a\nb\n", "a\nb"),
        ("a  \n\n", "a\n"),
        ("took 0.25 s", "took <0.2..0.3> s"),
        ("0.2 0.3", "<0.2..0.3> <0.2..0.3>"),
        ("-1.5e-3", "<-0.002..-1e-3>"),
        ("[1, 2]", "[<0..5>, <0..5>]"),
        ("3..5.", "<1..4>..<4..6>."),
        ("wrote /tmp/a/b.json", "wrote <path>"),
        ("x <path> <0..1>", "x <path> <0..1>"),
        ("(a+b)*", "(a+b)*"),
    ],
)
def test_what_agrees(printed: str, written: str) -> None:
    """White space at the end of lines is nobody's; bounds are inclusive; a token also stands for itself."""
    assert difference(printed, written) is None


@pytest.mark.parametrize(
    ("printed", "written", "message"),
    [
        ("a", "b", "-b\n+a"),
        (" a", "a", "+ a"),
        ("a\nb", "a\n...", "+b"),
        ("0.31", "<0.2..0.3>", "0.31 is not within <0.2..0.3>"),
        ("0.19", "<0.2..0.3>", "0.19 is not within <0.2..0.3>"),
        ("-0.25", "<0.2..0.3>", "-0.25 is not within"),
        ("1 9", "<0..5> <0..5>", "9 is not within <0..5>"),
        ("x", "<0..5>", "+x"),
        ("nan", "<0..5>", "+nan"),
        ("1 2", "<0..5>", "+1 2"),
        ("12", "1<0..5>", "+12"),
        ("1.5", "<0..5>.5", "+1.5"),
        ("1e9", "<0..5>e9", "+1e9"),
        ("2", "<3..1>", "the first bound is to be below the second"),
        ("1", "<number>", "+1"),
        ("a b", "<path>", "+a b"),
    ],
)
def test_what_differs(printed: str, written: str, message: str) -> None:
    """The message shows both, or the number and its bounds; a token takes a whole number or nothing."""
    assert message in (difference(printed, written) or "")
