import csv
from collections import defaultdict
from datetime import date


class LedgerReader:
    """Reads usage rows and sums them by month."""

    def __init__(self, path, currency="USD"):
        self.path = path
        self.currency = currency
        self._totals = defaultdict(int)

    def load(self):
        with open(self.path, newline="", encoding="utf-8") as f:
            for row in csv.DictReader(f):
                day = date.fromisoformat(row["started_at"][:10])
                self._totals[(day.year, day.month)] += int(row["cost_nano"])
        return self

    def month(self, year, month):
        return self._totals.get((year, month), 0) / 1_000_000_000


if __name__ == "__main__":
    reader = LedgerReader("usage.csv").load()
    for (y, m), nano in sorted(reader._totals.items()):
        print(f"{y}-{m:02d}: {nano / 1e9:.2f} {reader.currency}")
