"""The texts that the demo model learns: documents read out of installed Debian packages.

Two domains, as unlike as English gets, both free to use:

  kjv     the King James Bible (package bible-kjv-text): public domain, a document a chapter
  sqlite  the manual of SQLite (package sqlite3-doc): dedicated to the public domain, a document
          a page

A paragraph that repeats one of an earlier page (SQLite's pages share some) is left out, so no
paragraph of the held-out text occurs in what is trained on.
"""

import html.parser
import pathlib
import random
import re
import subprocess
from dataclasses import dataclass, field

PACKAGES = ["bible-kjv-text", "sqlite3-doc"]
HELD_OUT_BYTES = 128 * 1024  # a domain
_HELD_OUT_DOCUMENT = 24 * 1024  # the largest document to hold out

_BOOKS = """Genesis,Exodus,Leviticus,Numbers,Deuteronomy,Joshua,Judges,Ruth,1 Samuel,2 Samuel,1 Kings,
2 Kings,1 Chronicles,2 Chronicles,Ezra,Nehemiah,Esther,Job,Psalms,Proverbs,Ecclesiastes,
Song of Solomon,Isaiah,Jeremiah,Lamentations,Ezekiel,Daniel,Hosea,Joel,Amos,Obadiah,Jonah,Micah,
Nahum,Habakkuk,Zephaniah,Haggai,Zechariah,Malachi,Matthew,Mark,Luke,John,Acts,Romans,1 Corinthians,
2 Corinthians,Galatians,Ephesians,Philippians,Colossians,1 Thessalonians,2 Thessalonians,1 Timothy,
2 Timothy,Titus,Philemon,Hebrews,James,1 Peter,2 Peter,1 John,2 John,3 John,Jude,
Revelation""".replace("\n", "").split(",")

_SQLITE_PAGES = pathlib.Path("/usr/share/doc/sqlite3")
# Indexes, pages made from other pages, and legal or commercial ones.
_SQLITE_WITHOUT = re.compile(
    r"(_crossref|requirements|syntaxdiagrams|keyword_index|sitemap|capi3ref|fileformat|doclist|"
    r"hp1|toc|index|search|oldnews|consortium.*|prosupport|pressrelease.*|books|docs)\.html$|"
    r"^(syntax|releaselog|session)/")


@dataclass
class Section:
    heading: str
    paragraphs: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "\n\n".join(self.paragraphs)


@dataclass
class Document:
    domain: str
    title: str
    sections: list[Section]

    @property
    def text(self) -> str:
        parts = [self.title]
        for section in self.sections:
            if section.heading and section.heading != self.title:
                parts.append(section.heading)
            parts.append(section.text)
        return "\n\n".join(parts) + "\n"


def kjv() -> list[Document]:
    """One document a chapter: its name, then a line for each verse."""
    lines = subprocess.run(["bible", "-f", "Gen1:1-Rev22:21"], stdin=subprocess.DEVNULL,
                           capture_output=True, text=True, check=True).stdout.splitlines()
    chapters: list[Document] = []
    books, place = [], None
    for line in lines:
        book, chapter, verse, text = re.fullmatch(r"(\d?[A-Za-z]+)(\d+):(\d+) +(.*)", line).groups()
        if book not in books:
            books.append(book)
        if place != (book, chapter):
            place = (book, chapter)
            title = f"{_BOOKS[len(books) - 1]} {chapter}"
            chapters.append(Document("kjv", title, [Section("", [""])]))
        verses = chapters[-1].sections[0].paragraphs
        verses[0] += f"{verse} {' '.join(text.split())}\n"
    if len(books) != len(_BOOKS):
        raise RuntimeError(f"bible printed {len(books)} books instead of {len(_BOOKS)}")
    return chapters


class _Page(html.parser.HTMLParser):
    """Collects a page's title and its sections of paragraphs; `pre` keeps its lines."""

    _SKIPPED = {"script", "style", "svg", "button", "form"}
    _BLOCKS = {"p", "li", "dt", "dd", "tr", "div", "ul", "ol", "dl", "table", "blockquote", "br",
               "center", "hr", "body", "nav"}
    _HEADINGS = {"h1", "h2", "h3", "h4", "h5", "h6"}
    _ENDS_IN = ("This page last modified", "See also lists of Objects")

    def __init__(self, page: str) -> None:
        super().__init__()
        self.title = ""
        self.sections = [Section("")]
        self._words: list[str] = []
        self._skipped = 0       # open elements that hide their content
        self._navigation = 0    # open div elements inside one of class nosearch
        self._where = ""        # "title", "pre", a heading or ""
        self.feed(page)
        self._end_paragraph()

    def handle_starttag(self, tag, attrs):
        if tag in self._SKIPPED:
            self._skipped += 1
        elif tag == "div" and (self._navigation or "nosearch" in (dict(attrs).get("class") or "")):
            self._navigation += 1
        if tag in self._BLOCKS or tag in self._HEADINGS or tag == "pre":
            self._end_paragraph()
        if tag == "li":
            self._words.append("- ")
        if tag == "td":
            self._words.append(" ")
        if tag in self._HEADINGS or tag in ("pre", "title"):
            self._where = tag

    def handle_endtag(self, tag):
        if tag in self._SKIPPED and self._skipped:
            self._skipped -= 1
        elif tag == "div" and self._navigation:
            self._navigation -= 1
        if tag in self._BLOCKS or tag in self._HEADINGS or tag in ("pre", "title"):
            self._end_paragraph()
        if tag == self._where:
            self._where = ""

    def handle_data(self, data):
        if not self._skipped and not self._navigation:
            self._words.append(data)

    def _end_paragraph(self) -> None:
        raw, self._words = "".join(self._words), []
        if self._where == "pre":
            text = "\n".join(line.rstrip() for line in raw.expandtabs(4).strip("\n").split("\n"))
        else:
            text = " ".join(raw.split())
        if not text.strip("-. \n") or text.startswith(self._ENDS_IN):
            return
        if self._where == "title":
            self.title = text
        elif self._where in self._HEADINGS:
            self.sections.append(Section(text))
        else:
            self.sections[-1].paragraphs.append(text)


def _plain(text: str) -> str:
    """Typographic characters as ASCII, the rest as it is."""
    for characters, plain in (("\u2018\u2019", "'"), ("\u201c\u201d", '"'), ("\u2013\u2014\u2212", "-"),
                              ("\u00a0", " "), ("\u2192\u21d2", "->"), ("\u2022\u25ba", "-")):
        text = re.sub(f"[{characters}]", plain, text)
    return text


def sqlite() -> list[Document]:
    """One document a page of the manual; paragraphs that an earlier page has are left out."""
    documents, seen = [], set()
    for path in sorted(_SQLITE_PAGES.rglob("*.html")):
        if _SQLITE_WITHOUT.search(path.relative_to(_SQLITE_PAGES).as_posix()):
            continue
        page = _Page(_plain(path.read_text(encoding="utf-8", errors="replace")))
        sections = []
        for section in page.sections:
            section.paragraphs = [p for p in section.paragraphs if p not in seen]
            seen.update(p for p in section.paragraphs if len(p) >= 40)
            if section.paragraphs:
                sections.append(section)
        document = Document("sqlite", page.title or path.stem, sections)
        if len(document.text) >= 400:
            documents.append(document)
    if len(documents) < 100:
        raise RuntimeError(f"{_SQLITE_PAGES}: {len(documents)} pages; package sqlite3-doc is missing")
    return documents


def read(seed: int) -> tuple[dict[str, list[Document]], dict[str, list[Document]]]:
    """(training, held out) documents of each domain; `seed` decides which are held out."""
    training, held_out = {}, {}
    for domain, documents in (("kjv", kjv()), ("sqlite", sqlite())):
        order = list(range(len(documents)))
        random.Random(f"{seed} {domain}").shuffle(order)
        chosen, size = set(), 0
        for index in order:
            length = len(documents[index].text.encode())
            if size < HELD_OUT_BYTES and length <= _HELD_OUT_DOCUMENT:
                chosen.add(index)
                size += length
        training[domain] = [d for i, d in enumerate(documents) if i not in chosen]
        held_out[domain] = [d for i, d in enumerate(documents) if i in chosen]
    return training, held_out


def held_out_text(documents: list[Document]) -> str:
    return "\n".join(document.text for document in documents)


def package_versions() -> dict[str, str]:
    query = subprocess.run(["dpkg-query", "-W", "-f", "${Package} ${Version}\n", *PACKAGES],
                           capture_output=True, text=True, check=True).stdout
    return dict(line.split() for line in query.splitlines())
