"""The test that the page names for the file that it shows."""

import pytest
from tariff import price


def test_the_lightest_rate_that_holds_the_parcel() -> None:
    assert price(501, {1000: 4.25, 500: 3.5}) == 4.25


def test_a_parcel_that_is_too_heavy() -> None:
    with pytest.raises(ValueError, match="600 g is more than the 500 g"):
        price(600, {500: 3.5})
