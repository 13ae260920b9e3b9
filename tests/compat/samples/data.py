"""Made-up rows in the form of the data sets that samples of Google train with."""

from __future__ import annotations

import random

_CENSUS = (
    ("Private", "State-gov", "Self-emp-not-inc"),
    ("Bachelors", "HS-grad", "11th", "Masters"),
    ("Never-married", "Married-civ-spouse", "Divorced"),
    ("Adm-clerical", "Exec-managerial", "Machine-op-inspct", "Sales"),
    ("Not-in-family", "Husband", "Own-child"),
    ("White", "Black"),
    ("Male", "Female"),
    ("United-States", "Cuba"),
)
HEADLINES = {
    "github": "show hn a small compiler for texts and tools",
    "nytimes": "a plan of the city and a reckoning in court",
    "techcrunch": "startup raises money to offer latest products",
}


def census(rows: int, seed: int, separator: str = ", ") -> str:
    """Lines of adult.data."""
    chance = random.Random(seed)
    lines = []
    for _ in range(rows):
        work, education, marital, occupation, relation, race, sex, country = map(chance.choice, _CENSUS)
        age, years, hours = chance.randint(18, 70), chance.randint(5, 16), chance.randint(10, 60)
        gain = chance.choice((0, 0, 2174))
        label = ">50K" if age + 3 * years + hours / 2 > 90 else "<=50K"
        row = (
            *(age, work, chance.randint(20000, 400000), education, years, marital, occupation, relation),
            *(race, sex, gain, chance.choice((0, 0, 1902)), hours, country, label),
        )
        lines.append(separator.join(map(str, row)))
    return "\n".join(lines) + "\n"


def headlines(copies: int) -> str:
    """Lines of a label and a text, with a tabulator between them."""
    return "".join(f"{label}\t{text} {n}\n" for n in range(copies) for label, text in HEADLINES.items())


def tweets(copies: int) -> str:
    """Lines of the sentiment data: sentiment, id, date, query, user, text."""
    texts = ((0, "I hate this bad day"), (4, "I love this good show"))
    return "".join(
        f'"{mood}","{n}","Mon May 11","NO_QUERY","user{n}","{text} {n}"\n'
        for n in range(copies)
        for mood, text in texts
    )


def vectors() -> str:
    """Words with fifty numbers each."""
    words = ["i", "hate", "love", "this", "bad", "good", "day", "show"]
    return "".join(f"{word} {' '.join(['0.1'] * 50)}\n" for word in words)


def cover_types(rows: int, seed: int) -> str:
    """The table of trees in a forest, with its header."""
    header = (
        "Elevation,Aspect,Slope,Horizontal_Distance_To_Hydrology,Vertical_Distance_To_Hydrology,"
        "Horizontal_Distance_To_Roadways,Hillshade_9am,Hillshade_Noon,Hillshade_3pm,"
        "Horizontal_Distance_To_Fire_Points,Wilderness_Area,Soil_Type,Cover_Type\n"
    )
    chance = random.Random(seed)
    lines = [
        ",".join(
            (
                *(str(chance.randint(0, 3000)) for _ in range(10)),
                chance.choice(("Cache", "Commanche", "Neota", "Rawah")),
                chance.choice(("2702", "7202", "7700")),
                str(chance.randint(0, 6)),
            )
        )
        for _ in range(rows)
    ]
    return header + "\n".join(lines) + "\n"


def houses(rows: int, seed: int, *, priced: bool) -> str:
    """A few columns of the houses that Kaggle has."""
    chance = random.Random(seed)
    lines = ["Id,MSSubClass,MSZoning,LotArea,Street,YearBuilt" + (",SalePrice" if priced else "")]
    for number in range(rows):
        area, year = chance.randint(2000, 20000), chance.randint(1900, 2010)
        zone, street = chance.choice(("RL", "RM", "FV")), chance.choice(("Pave", "Grvl"))
        price = f",{50000 + 10 * area}" if priced else ""
        lines.append(f"{number},{chance.choice((20, 60))},{zone},{area},{street},{year}{price}")
    return "\n".join(lines) + "\n"


def flowers(rows: int) -> str:
    """The iris data of scikit-learn, as its first home has them: no header, names of species."""
    from sklearn.datasets import load_iris

    iris = load_iris()
    step = max(1, len(iris.data) // rows)
    lines = [
        f"{','.join(map(str, row))},Iris-{iris.target_names[kind]}"
        for row, kind in list(zip(iris.data, iris.target, strict=True))[::step]
    ]
    return "\n".join(lines) + "\n"
