"""The key that a handler has looked for in vain, where it is safe to name it: in `person["givenName"]`.

What a handler looks up may be a claim, as in `prices[person["country"]]`, and the same word may stand elsewhere in its
code. So the key is named only if the very instruction that failed has it from the code.
"""

import dis
import functools
import re
from types import CodeType
from typing import Final

#: What names in schemas look like.
_NAME: Final = re.compile(r"[A-Za-z0-9_.:-]{1,64}")


def missing_key(error: Exception) -> str | None:
    """The key of a KeyError, if the code that raised it spells the key out between the brackets; otherwise None."""
    if type(error) is not KeyError or len(error.args) != 1 or error.__traceback__ is None:
        return None
    key = error.args[0]
    if type(key) is not str or not _NAME.fullmatch(key):
        return None
    step = error.__traceback__
    while step.tb_next:
        step = step.tb_next
    return key if _literal_key(step.tb_frame.f_code, step.tb_lasti) == key else None


@functools.lru_cache(maxsize=256)  # A failure that repeats itself for every event costs a look once.
def _literal_key(code: CodeType, offset: int) -> object:
    """What stands between the brackets of the subscript at that instruction, if it is a constant; otherwise None."""
    before = None
    for instruction in dis.get_instructions(code):
        if instruction.offset == offset:
            is_subscript = instruction.opname == "BINARY_SUBSCR" or instruction.argrepr == "[]"  # Since Python 3.14.
            return before.argval if is_subscript and before is not None and before.opname == "LOAD_CONST" else None
        before = instruction
    return None
