"""What others wrote is read, or there is a reason why it is not."""

import pytest
from fuzzing_measured import FORMATS, without_reason


@pytest.mark.slow
@pytest.mark.parametrize("kind", FORMATS)
def test_each_field_is_read_or_there_is_a_reason(tmp_path, kind):
    unread, needless = without_reason(kind, FORMATS[kind].unread(tmp_path))
    assert unread == set()
    assert needless == set()
