// The files of the page, as the build put them into the program (tools/embed_files.py).
#pragma once

#include <span>
#include <string_view>

namespace server {

struct PageFile {
  std::string_view name;  // "index.html"
  std::string_view content;
};

std::span<const PageFile> PageFiles();

}  // namespace server
