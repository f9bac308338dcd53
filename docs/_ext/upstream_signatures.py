"""What `{sig}` shows of Megatron Core and NeMo RL: a pinned fact, held to the installed version when there is one."""

from functools import cache

from schema_keys import UnknownNameError, did_you_mean

from reference_impl.config.upstream_facts import MEGATRON_CORE, NEMO_RL, Fact, differences
from reference_impl.doctesting.installed import NotFoundError, Source, installed

FACTS = [fact for fact in (*MEGATRON_CORE, *NEMO_RL) if fact.kind != "yaml"]


def signature(name: str) -> str:
    """The object as its source declares it; raises {class}`schema_keys.UnknownNameError` if it is not as pinned.

    `name` is a dotted object, or any unique ending of one: `DynamicInferenceEngine.suspend`.
    """
    fact = fact_of(name)
    source = _megatron_core()
    if source is not None and fact in MEGATRON_CORE:
        for line in differences(source, [fact]):
            raise UnknownNameError(f"not as pinned: {line}")
    return declaration(name, fact)


def declaration(name: str, fact: Fact) -> str:
    """A fact as a declaration that calls its object `name`."""
    match fact.kind:
        case "signature":
            return f"{name.removesuffix('.__init__')}{fact.pinned}"
        case "value":
            return f"{name} = {fact.pinned}"
    return f"{name}: {fact.pinned}"


def fact_of(name: str) -> Fact:
    """The pinned fact about an object; raises {class}`schema_keys.UnknownNameError` unless there is exactly one."""
    found = [fact for fact in FACTS if fact.name == name or fact.name.endswith(f".{name}")]
    if len(found) == 1:
        return found[0]
    if found:
        raise UnknownNameError(f"ambiguous object {name!r}: {' or '.join(fact.name for fact in found)}")
    endings = [".".join(fact.name.split(".")[-2:]) for fact in FACTS]
    raise UnknownNameError(f"no pinned object {name!r}{did_you_mean(name, endings)}")


@cache
def _megatron_core() -> Source | None:
    try:
        return installed("megatron-core")
    except NotFoundError:
        return None
