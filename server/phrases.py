"""The words that people read while they wait, by language.

A language is a table here; a missing phrase falls back to English. `Accept-Language` picks (RFC
9110, 12.5.4).
"""

from __future__ import annotations

from collections.abc import Mapping

ENGLISH: Mapping[str, str] = {
    "lang": "en",
    "thousands": ",",
    "title_place": "You are number {place} in the queue",
    "title_next": "You are next",
    "title_ready": "You are among the next to start",
    "title_busy": "Every place is taken right now",
    "title_closed": "The server is restarting",
    "title_prequeue": "This opens in {time}",
    "lead": "{file} ({size}) starts downloading by itself, on this page, when it is your turn.",
    "lead_busy": "{file} ({size}): this page asks again by itself.",
    "lead_closed": "Your place is kept. This page asks again by itself.",
    "lead_prequeue": "You are registered for {file} ({size}). When it opens, the order is drawn at "
    "random; coming earlier gives no advantage.",
    "expected": "Expected wait",
    "expected_value": "about {time}",
    "latest": "very likely within {time}",
    "waited": "Waited so far",
    "progress": "Progress since you got your number",
    "next_visit": "This page asks again in {time}.",
    "keep": "Keep this page open; it needs no JavaScript. Reloading it sooner does not help.",
    "return": "Closed it by mistake? Open the same link again in this browser: your place is kept.",
    "refused": "This download cannot start",
    "again": "This page asks afresh by itself.",
    "seconds": "{n} s",
    "minutes": "{n} min",
    "hours": "{h} h {m} min",
}
GERMAN: Mapping[str, str] = {
    "lang": "de",
    "thousands": ".",
    "title_place": "Sie sind Nummer {place} in der Warteschlange",
    "title_next": "Sie sind als Nächstes an der Reihe",
    "title_ready": "Sie gehören zu den Nächsten",
    "title_busy": "Im Moment sind alle Plätze belegt",
    "title_closed": "Der Server startet neu",
    "title_prequeue": "Öffnet in {time}",
    "lead": "{file} ({size}) wird von dieser Seite aus von selbst geladen, sobald Sie an der "
    "Reihe sind.",
    "lead_busy": "{file} ({size}): Diese Seite fragt von selbst wieder nach.",
    "lead_closed": "Ihr Platz bleibt erhalten. Diese Seite fragt von selbst wieder nach.",
    "lead_prequeue": "Sie sind für {file} ({size}) vorgemerkt. Die Reihenfolge wird bei der "
    "Öffnung ausgelost; früher zu kommen bringt keinen Vorteil.",
    "expected": "Voraussichtliche Wartezeit",
    "expected_value": "etwa {time}",
    "latest": "sehr wahrscheinlich höchstens {time}",
    "waited": "Bisher gewartet",
    "progress": "Fortschritt, seit Sie Ihre Nummer haben",
    "next_visit": "Diese Seite fragt in {time} wieder nach.",
    "keep": "Lassen Sie diese Seite offen; sie braucht kein JavaScript. Früheres Neuladen "
    "bringt nichts.",
    "return": "Aus Versehen geschlossen? Öffnen Sie denselben Link noch einmal in diesem "
    "Browser: Ihr Platz bleibt erhalten.",
    "refused": "Dieser Download kann nicht beginnen",
    "again": "Diese Seite fragt von selbst neu an.",
    "seconds": "{n} s",
    "minutes": "{n} min",
    "hours": "{h} Std. {m} min",
}
LANGUAGES: Mapping[str, Mapping[str, str]] = {"en": ENGLISH, "de": GERMAN}


class Phrases:
    """The phrases of one language."""

    def __init__(self, table: Mapping[str, str]) -> None:
        self._table = table

    def __call__(self, key: str, **values: object) -> str:
        """A phrase with its blanks filled."""
        return (self._table.get(key) or ENGLISH[key]).format(**values)

    def time(self, duration_s: float) -> str:
        """A duration as this language writes it: 45 s, 14 min, 2 h 5 min."""
        if duration_s < 90:
            return self("seconds", n=max(0, round(duration_s)))
        minutes = round(duration_s / 60)
        if minutes < 90:
            return self("minutes", n=minutes)
        return self("hours", h=minutes // 60, m=minutes % 60)


def phrases_for(accept_language: bytes | None) -> Phrases:
    """The best language that a request accepts; English when it accepts none of ours."""
    best, best_quality = "en", 0.0
    for part in (accept_language or b"").decode("latin-1").split(",")[:32]:
        tag, *parameters = part.strip().lower().split(";")
        quality = 1.0
        for parameter in parameters:
            name, _, value = parameter.strip().partition("=")
            if name == "q":
                try:
                    quality = float(value)
                except ValueError:
                    quality = 0.0
        language = tag.partition("-")[0]
        if language in LANGUAGES and quality > best_quality:
            best, best_quality = language, quality
    return Phrases(LANGUAGES[best])
