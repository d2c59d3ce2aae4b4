"""Conditions on tables are parsed, not run."""

import string

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from physim.errors import InputError
from physim.measured.condition import filtered

FRAME = pd.DataFrame(
    {
        "tp": [1, 2, 4, 8],
        "rate_rps": [0.5, 2.0, float("nan"), 8.0],
        "model": ["Qwen/Qwen3-8B", "a+b (c)", None, "Llama-3.1"],
        "prefix_caching": [True, False, True, False],
        "engine_version": pd.array(["0.10", "0.9", None, "0.10"], dtype="string"),
    }
)


@pytest.mark.parametrize(
    ("where", "rows"),
    [
        ("tp == 2", [1]),
        ("tp != 2", [0, 2, 3]),
        ("1 < tp <= 4", [1, 2]),
        ("tp == 1 or tp == 8 and prefix_caching", [0]),
        ("(tp == 1) | (tp == 8) & ~prefix_caching", [0, 3]),
        ("not prefix_caching", [1, 3]),
        ("prefix_caching == True", [0, 2]),
        ("tp in [1, 8]", [0, 3]),
        ("tp not in (1, 8)", [1, 2]),
        ("tp in []", None),
        ("tp > -1", [0, 1, 2, 3]),
        ("rate_rps < tp", [0]),
        # What is empty is unlike everything.
        ("rate_rps != 2", [0, 2, 3]),
        ("not rate_rps > 1", [0, 2]),
        ("model == 'Llama-3.1'", [3]),
        ("model.str.contains('wen3-')", [0]),
        ("not model.str.contains('wen3-')", [1, 2, 3]),
        ("model.str.contains('+b (')", [1]),
        ("model.str.contains('3.1')", [3]),
        ("model.str.startswith('Ll') or model.str.endswith('8B')", [0, 3]),
        ("engine_version == '0.10'", [0, 3]),
        ("engine_version != '0.10'", [1, 2]),
    ],
)
def test_conditions(where, rows):
    if rows is None:
        with pytest.raises(InputError, match="holds for no row"):
            filtered(FRAME, where)
        return
    assert filtered(FRAME, where).index.tolist() == rows


@pytest.mark.parametrize(
    ("where", "complaint"),
    [
        ("speed > 2", "speed is not a column"),
        ("tp", "tp is not a condition on rows"),
        ("tp + 1", "is not a condition on rows"),
        ("tp + 1 == 2", "is neither a column nor a number"),
        ("1", "is not a condition on rows"),
        ("1 == 1", "are no columns"),
        ("tp == '2'", "are not both text, or both numbers"),
        ("tp in ['2']", "are not both text, or both numbers"),
        ("model > 3", "are not both text, or both numbers"),
        ("engine_version == 0.10", "are not both text, or both numbers"),
        ("tp in 2", "2 is not a list"),
        ("tp is 2", "write =="),
        ("tp.str.contains('2')", "tp is not text"),
        ("model.str.contains('Qwen|Llama')", "use `or`"),
        ("model.str.contains('(a+)+$')", "use `or`"),
        ("model.str.contains('a', regex=True)", "is not a condition on rows"),
        ("model.str.upper() == 'A'", "is neither a column"),
        ("tp ==", "is not a condition over the columns"),
        ("", "is not a condition over the columns"),
        ("tp == 2\x00", "is not a condition over the columns"),
        ("tp = 2", "is not a condition over the columns"),
        ("tp == 1 or " * 300 + "tp == 1", "2000 are the most"),
        ("(" * 900 + "tp == 1" + ")" * 900, "where"),
        ("~" * 1900 + "prefix_caching", "where"),
        ("not " * 400 + "tp", "where"),
        ("tp" + ".a" * 900, "where"),
        ("-" * 1900 + "1 == tp", "where"),
    ],
)
def test_what_is_no_condition(where, complaint):
    with pytest.raises(InputError) as raised:
        filtered(FRAME, where)
    assert complaint in str(raised.value)
    assert len(str(raised.value)) < 400


@pytest.mark.parametrize(
    "where",
    [
        "@__import__('os').system('touch {place}')",
        "__import__('os').system('touch {place}') == 0",
        "tp.to_csv('{place}')",
        "tp.to_csv('{place}') == 1",
        "[tp.to_csv('{place}')] == tp",
        "(x := tp.to_csv('{place}')) == 1",
        "(lambda: tp.to_csv('{place}'))() == 1",
        "@FRAME.to_pickle('{place}')",
        "f'{{tp.to_csv(\"{place}\")}}' == model",
    ],
)
def test_nothing_is_run(where, tmp_path):
    place = tmp_path / "made"
    with pytest.raises(InputError):
        filtered(FRAME, where.format(place=place))
    assert not place.exists()


WORDS = ["tp", "model", "rate_rps", "and", "or", "not", "in", "==", "<", "(", ")", "[", "]", ",",
         "1", "'a'", ".str.contains('a')", "-", "~", "&", "1e999", "None", "0x", "\\"]  # fmt: skip


@given(
    st.one_of(
        st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join),
        st.text(st.sampled_from(string.printable + "é\u2028\ud800"), max_size=30),
    )
)
def test_any_text_is_a_condition_or_one_line(where):
    try:
        kept, told = filtered(FRAME, where), ""
    except InputError as error:
        kept, told = None, str(error)
    assert (kept is None) == bool(told)
    assert kept is None or len(kept) > 0
    assert "\n" not in told
