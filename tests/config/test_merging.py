"""Merging layers is OmegaConf's merge, which NeMo RL uses, for trees without references."""

from hypothesis import assume, given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from reference_impl.config.merging import merge
from reference_impl.config.reading import Layer

NAMES = st.sampled_from("abc")
SCALARS = st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["x", ""])
VALUES = st.recursive(
    SCALARS | st.lists(SCALARS, max_size=2), lambda inner: st.dictionaries(NAMES, inner, max_size=3), max_leaves=8
)
TREES = st.dictionaries(NAMES, VALUES, max_size=3)


@given(st.lists(TREES, min_size=1, max_size=3))
def test_layers_merge_as_omegaconf_merges_them(trees):
    """Sections key by key, lists and scalars whole, the later layer wins."""
    merged, clashes = merge({}, [Layer(str(number), tree) for number, tree in enumerate(trees)])
    assume(not clashes)  # a list and a section in one place: both refuse it, OmegaConf with a TypeError
    assert merged == OmegaConf.to_container(OmegaConf.merge(*trees))


@given(TREES, TREES)
def test_a_list_and_a_section_do_not_mix_where_omegaconf_refuses_them(below, above):
    """Each clash is one that OmegaConf raises for, and where it raises there is one."""
    _, clashes = merge({}, [Layer("below", below), Layer("above", above)])
    try:
        OmegaConf.merge(below, above)
        refused = False
    except TypeError:
        refused = True
    assert bool(clashes) == refused
