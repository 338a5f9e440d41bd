#!/usr/bin/env python3
"""Makes the sample PDFs from the texts in text/, and the broken PDF of the tests from one of them.

Needs: Python 3.9, `pip install fpdf2==2.8.9 pillow==13.0.0`, and three fonts, of which subsets are embedded (Debian packages
fonts-liberation, SIL OFL 1.1; fonts-droid-fallback, Apache 2.0). Usage: python3 samples/make.py

What is made is committed; run this again only when a text or this script has changed.

    tides.pdf      English, 4 pages, with a table
    schleuse.pdf   German, 3 pages
    marees.pdf     French, 2 pages
    chaoxi.pdf     Chinese, 3 pages
    columns.pdf    English, 1 page in two columns, drawn line by line across both
    scan.pdf       2 pages that are only pictures, slightly crooked, as from a scanner

crates/tidegate-pdf/tests/data/broken.pdf is tides.pdf, cut off and damaged: it cannot be read. It is not a sample, so that
`tidegate explain samples/` succeeds.
"""

import datetime
import io
import random
import textwrap
from pathlib import Path

from fpdf import FPDF
from PIL import Image, ImageDraw, ImageFont

HERE = Path(__file__).resolve().parent
BROKEN = HERE.parent / "crates" / "tidegate-pdf" / "tests" / "data" / "broken.pdf"
LIBERATION = Path("/usr/share/fonts/truetype/liberation")
DROID = Path("/usr/share/fonts/truetype/droid/DroidSansFallbackFull.ttf")
MADE = datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc)


def pages(name):
    """The pages of a text; each is a list of paragraphs."""
    text = (HERE / "text" / f"{name}.txt").read_text(encoding="utf-8")
    return [[part for part in page.strip().split("\n\n") if part] for page in text.split("\n==\n")]


def document(title, cjk=False):
    pdf = FPDF(format="A4")
    pdf.creation_date = MADE
    pdf.set_title(title)
    pdf.set_author("tidegate")
    pdf.set_auto_page_break(False)
    pdf.set_margins(28, 26, 28)
    pdf.add_font("number", "", LIBERATION / "LiberationSerif-Regular.ttf")
    if cjk:
        for style in ("", "B"):
            pdf.add_font("body", style, DROID)
    else:
        pdf.add_font("body", "", LIBERATION / "LiberationSerif-Regular.ttf")
        pdf.add_font("body", "B", LIBERATION / "LiberationSans-Bold.ttf")
    return pdf


def heading(pdf, paragraph):
    title, *subtitle = paragraph.removeprefix("# ").split("\n")
    pdf.set_font("body", "B", 18)
    pdf.multi_cell(0, 9, title, align="L", new_x="LMARGIN", new_y="NEXT")
    pdf.set_font("body", "", 12)
    for line in subtitle:
        pdf.multi_cell(0, 7, line, align="L", new_x="LMARGIN", new_y="NEXT")
    pdf.ln(4)


def table(pdf, rows):
    pdf.set_font("body", "", 11.5)
    for row in rows:
        cells = [cell.strip() for cell in row.split("  ") if cell.strip()]
        for cell in cells:
            pdf.cell(48, 7, cell, border="B")
        pdf.ln(7)


def prose(name, cjk=False):
    content = pages(name)
    pdf = document(content[0][0].removeprefix("# ").split("\n")[0], cjk)
    for number, page in enumerate(content, 1):
        pdf.add_page()
        for paragraph in page:
            if paragraph.startswith("# "):
                heading(pdf, paragraph)
            elif all("   " in line for line in paragraph.split("\n")):
                table(pdf, paragraph.split("\n"))
            else:
                pdf.set_font("body", "", 11.5)
                wrap = "CHAR" if cjk else "WORD"
                align = "L" if cjk else "J"
                pdf.multi_cell(0, 6.2, paragraph, align=align, wrapmode=wrap, new_x="LMARGIN", new_y="NEXT")
                pdf.ln(3)
        pdf.set_xy(0, 280)
        pdf.set_font("number", "", 9)
        pdf.cell(210, 5, str(number), align="C")
    pdf.output(HERE / f"{name}.pdf")


def columns():
    (first, *paragraphs), = pages("notes")
    pdf = document("Field notes on queues")
    pdf.add_page()
    heading(pdf, first)
    lines = []
    for paragraph in paragraphs:
        lines += textwrap.wrap(paragraph, 46) + [""]
    half = (len(lines) + 1) // 2
    pdf.set_font("body", "", 10)
    # Line by line across both columns, as some programs do.
    for row in range(half):
        y = 55 + 5.2 * row
        for x, index in ((28, row), (112, half + row)):
            if index < len(lines) and lines[index]:
                pdf.text(x, y, lines[index])
    pdf.output(HERE / "columns.pdf")


def scan():
    random.seed(4)
    (first, *paragraphs), = pages("notes")
    pdf = FPDF(format="A4")
    pdf.creation_date = MADE
    pdf.set_title("A scan")
    pdf.set_auto_page_break(False)
    font = ImageFont.truetype(str(LIBERATION / "LiberationMono-Regular.ttf"), 21)
    for part in (paragraphs[:3], paragraphs[3:]):
        paper = Image.new("L", (1000, 1414), 246)
        draw = ImageDraw.Draw(paper)
        y = 120
        for paragraph in part:
            for line in textwrap.wrap(paragraph, 60):
                draw.text((110, y), line, font=font, fill=random.randint(30, 60))
                y += 31
            y += 20
        paper = paper.rotate(0.6, fillcolor=246, resample=Image.BICUBIC)
        encoded = io.BytesIO()
        paper.quantize(8).save(encoded, "PNG", optimize=True)
        encoded.seek(0)
        pdf.add_page()
        pdf.image(encoded, 0, 0, 210, 297)
    pdf.output(HERE / "scan.pdf")


def broken():
    whole = (HERE / "tides.pdf").read_bytes()
    # The size of a download that stopped, and not an object in it can be found.
    BROKEN.write_bytes(whole[:9000].replace(b" obj", b" \0bj"))


if __name__ == "__main__":
    prose("tides")
    prose("schleuse")
    prose("marees")
    prose("chaoxi", cjk=True)
    columns()
    scan()
    broken()
    for made in [*sorted(HERE.glob("*.pdf")), BROKEN]:
        print(f"{made.stat().st_size:8}  {made.name}")
