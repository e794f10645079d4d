#!/usr/bin/env python3
"""Makes the C++ source of server::PageFiles() from files.

    tools/embed_files.py OUT.cc NAME=FILE...
"""

import sys
from pathlib import Path

LINE = 20  # bytes of a file on one line of source


def array_of(content):
    lines = (content[i:i + LINE] for i in range(0, len(content), LINE))
    return "\n".join("".join(f"{byte}," for byte in line) for line in lines)


def source_of(files):
    arrays = "".join(f"constexpr unsigned char kFile{i}[] = {{\n{array_of(content)}\n0}};\n"
                     for i, (_, content) in enumerate(files))
    entries = "".join(f'    {{"{name}", Text(kFile{i}, {len(content)})}},\n'
                      for i, (name, content) in enumerate(files))
    return f"""// Made by tools/embed_files.py.
#include "server/http/page_files.h"

#include <array>
#include <cstddef>

namespace server {{
namespace {{

{arrays}
std::string_view Text(const unsigned char* bytes, std::size_t size) {{
  return {{reinterpret_cast<const char*>(bytes), size}};
}}

}}  // namespace

std::span<const PageFile> PageFiles() {{
  static const std::array<PageFile, {len(files)}> files = {{{{
{entries}  }}}};
  return files;
}}

}}  // namespace server
"""


def main(arguments):
    if len(arguments) < 2 or any("=" not in pair for pair in arguments[1:]):
        print(__doc__.strip(), file=sys.stderr)
        return 2
    files = []
    for pair in arguments[1:]:
        name, path = pair.split("=", 1)
        files.append((name, Path(path).read_bytes()))
    Path(arguments[0]).write_text(source_of(files), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
