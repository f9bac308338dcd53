"""The price of a parcel: the whole library that this project documents."""


def price(grams: int, rates: dict[int, float]) -> float:
    """Return the price in euros of a parcel, from a table of the heaviest weight in grams to its price.

    Raises `ValueError` for a parcel that is heavier than the table goes.
    """
    for heaviest, euros in sorted(rates.items()):
        if grams <= heaviest:
            return euros
    raise ValueError(f"{grams} g is more than the {max(rates)} g of the heaviest parcel")
