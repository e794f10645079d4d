// GgufFile::Parse on arbitrary bytes: it refuses or accepts, and what it accepts lies inside them.
#include <cstdint>
#include <cstdlib>
#include <span>

#include "gg/gguf_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  auto file = gg::GgufFile::Parse(std::as_bytes(std::span(data, size)), "fuzz.gguf");
  if (!file) {
    if (file.error().message.find('\n') != std::string::npos) std::abort();
    return 0;
  }
  for (const gg::GgufTensor& tensor : file->tensors()) {
    if (tensor.offset > size || tensor.bytes.count() > size - tensor.offset) std::abort();
    if (file->FindTensor(tensor.name) != &tensor) std::abort();
  }
  for (const auto& [key, value] : file->metadata()) {
    (void)file->String(key);
    (void)file->Uint32(key);
    (void)file->Float(key);
    (void)file->Bool(key);
    (void)file->IntArray(key);
  }
  (void)file->DirectoryHash();
  (void)file->ShapeHash();
  return 0;
}
